"""Numba kernels over plain arrays. No other package imports numba. The tests compare each kernel with a naive counterpart."""
