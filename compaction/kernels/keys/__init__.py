"""Kernels over keys: the offset map, the key filter, counts."""
