"""The decisions of Kafka's log cleaner, as pure functions of values: without files, Spark or a clock."""
