"""One run over many logs, without Spark; ``clean`` has the steps of a run."""
