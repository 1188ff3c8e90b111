"""Judges the result of a cleaning against its source, sharing no rule with the cleaner: no record lost, none changed."""
