"""Kernels that format batches and records as lines of Kafka's dump tool."""
