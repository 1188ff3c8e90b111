"""The ``kafka_log`` data source of Spark."""
