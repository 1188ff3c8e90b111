"""Checks before a run: the machine, the log directories, and logs whose cleaner has died."""
