"""One module for each command: its function of the Python API, its options, and the display of its result; what they share is
in ``runs``, and ``read`` is a function of the Python API alone."""
