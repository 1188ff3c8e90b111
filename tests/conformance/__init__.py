"""The job compared with Kafka: both clean the same directory; the results are compared file by file and through a broker."""
