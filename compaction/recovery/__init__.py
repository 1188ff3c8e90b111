"""Recovers a log before a run: finishes or rolls back an interrupted swap, splits segments, rebuilds indexes."""
