"""Our job against Kafka itself: the same directory cleaned by both, then compared file by file and through a broker."""
