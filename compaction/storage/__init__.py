"""Everything that touches files: reading logs at rest, recovery, the swap, checkpoints, locks and publishing."""
