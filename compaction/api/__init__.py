"""The engine of a call."""
