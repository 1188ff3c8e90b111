"""Judges what a cleaner left: nothing is lost, nothing is changed. Shares no rule with what it judges."""
