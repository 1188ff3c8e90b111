"""The commands: each module is a ``spark-submit`` application with ``main(argv) -> exit code``."""
