"""Numba kernels over plain arrays; the only package that imports numba. Each has a naive twin in the tests."""
