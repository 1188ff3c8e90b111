"""``make search``: searches with fresh seeds, and the cases that they have found."""
