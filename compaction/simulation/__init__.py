"""Policies through time: the size that a log would have had under a policy, from the arrivals of its records."""
