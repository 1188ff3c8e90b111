"""Batches and records: v2, and the message sets of v0 and v1."""
