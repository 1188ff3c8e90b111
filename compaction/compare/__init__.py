"""Policies side by side: what each would do to the same logs, as figures, text and a page."""
