"""Whether a run can be trusted: other runs, brokers and hostile users beside it."""
