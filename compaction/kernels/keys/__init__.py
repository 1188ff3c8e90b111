"""Loops over keys: the offset map, filters, counts."""
