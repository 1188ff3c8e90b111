"""What Kafka's cleaner decides, as pure functions over values: no files, no Spark, no clock of its own."""
