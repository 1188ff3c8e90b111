"""Logs at rest as a consumer reads them: the ``kafka_log`` data source of Spark."""
