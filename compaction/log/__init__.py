"""Log directories: partitions, segments, batches and checkpoints, and how a log is read."""
