"""The commands as applications of ``spark-submit``: each file runs the command of its name."""
