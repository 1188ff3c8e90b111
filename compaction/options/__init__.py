"""The options of all commands in one table, and what a call of the Python API and a command line have in common."""
