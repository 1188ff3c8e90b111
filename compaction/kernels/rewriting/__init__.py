"""Kernels that decide which records of a batch are retained, and write the cleaned batch."""
