"""Before a run: compilation of kernels in advance, the check of Java, protection from other users."""
