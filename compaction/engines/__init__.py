"""Who runs the tasks of a run: worker processes on this machine. ``compaction.spark`` runs them as Spark jobs."""
