"""Bytes to values and back, pure: no file access, no clock, nothing here knows where bytes come from."""
