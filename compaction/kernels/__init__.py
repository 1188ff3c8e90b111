"""Numba kernels over plain arrays. No other package imports numba. Each kernel has a naive twin in the tests."""
