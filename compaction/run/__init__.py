"""One run over many logs, without Spark; ``run.run`` has its steps."""
