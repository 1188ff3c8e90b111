"""One module for each command: its function of the Python API, its options, and the display of its result."""
