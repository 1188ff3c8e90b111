"""Before a run: all kernels in advance, the check of Java, what keeps other users out; less garbage collection in workers."""
