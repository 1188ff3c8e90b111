"""Trust in a run: disk faults, failing operations, other runs and brokers at the same time."""
