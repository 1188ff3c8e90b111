"""The work of one task in each pass, independent of Spark."""
