"""The ``kafka_log`` data source of Spark: log directories at rest as DataFrames."""
