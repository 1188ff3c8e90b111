"""How kernels are compiled and kept: the decorator, the cache, and the native functions that they call."""
