"""Run the tasks of commands: ``local`` in worker processes of this machine, ``spark`` as jobs of a session, ``connect`` on a
Spark Connect server. Each implements ``compaction.engine.Engine``."""
