"""What makes a start quick: kernels compiled early and kept, workers without needless garbage collection."""
