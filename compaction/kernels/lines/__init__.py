"""Loops that print batches and records as the dump tool does."""
