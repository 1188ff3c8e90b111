"""Bytes to values and back, as pure functions: no file access, no clock."""
