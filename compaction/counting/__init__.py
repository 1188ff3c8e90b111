"""Counts of logs at rest: records, distinct keys, and where the bytes of the ``.log`` files are."""
