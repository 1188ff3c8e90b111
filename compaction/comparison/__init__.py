"""What a comparison of policies found, as values, as JSON, as text and as a page."""
