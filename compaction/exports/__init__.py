"""Writes logs in other layouts than a log directory's."""
