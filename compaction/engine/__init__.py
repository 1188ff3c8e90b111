"""One run over many logs, free of Spark; ``clean`` is the story."""
