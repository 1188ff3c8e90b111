"""Loops that find batches and records in blocks of bytes, and hash their keys."""
