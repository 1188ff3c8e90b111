"""Real Apache Kafka for tests: its jars, a broker, and its own log and cleaner classes driven in one JVM."""
