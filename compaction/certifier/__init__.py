"""Verifies the result of a cleaning against its source: no record lost, none changed. Shares no rule with the cleaner."""
