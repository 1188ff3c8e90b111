"""What one task does in each pass, independent of Spark."""
