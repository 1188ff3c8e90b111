"""The work as Spark jobs: the only package, beside the commands, that imports pyspark."""
