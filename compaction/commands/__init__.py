"""One module for each command: its options, what it runs, and how its result is shown."""
