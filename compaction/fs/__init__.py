"""File systems behind a small interface: local files, and an overlay that keeps changes in memory."""
