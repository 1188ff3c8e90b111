"""What is done first: an interrupted swap is finished or rolled back, indexes are rebuilt, segments are split."""
