"""What a log directory is: its partitions, segments, batches and checkpoints, and how a log is read."""
