"""Shortens start-up: kernels compiled in advance and cached, less garbage collection in workers."""
