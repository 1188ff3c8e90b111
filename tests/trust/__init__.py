"""Trust in a run: disk faults, failing operations, other runs, brokers and hostile users at the same time."""
