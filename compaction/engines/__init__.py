"""Runs tasks in worker processes on this machine. ``compaction.spark`` runs them as Spark jobs."""
