"""Policies through time: what a policy, had it been in force, would have made of a log's arrivals."""
