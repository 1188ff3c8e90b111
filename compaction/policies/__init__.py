"""Compares policies on the same logs: measures what each would do, and shows it as JSON, metrics, text and a page."""
