"""How kernels are compiled and cached: decorators, the cache on disk, and native functions that kernels call."""
