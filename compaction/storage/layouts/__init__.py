"""Exports in other layouts than a log directory's, read as log directories."""
