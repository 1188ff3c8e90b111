"""Writes and verifies cleaned segments, swaps them in, deletes segments, and publishes cleaned copies."""
