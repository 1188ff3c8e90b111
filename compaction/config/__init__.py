"""Configuration: names, types, defaults and checks of Kafka, read from its sources and resolved by precedence."""
