"""Loops that decide what a batch keeps, and write it."""
