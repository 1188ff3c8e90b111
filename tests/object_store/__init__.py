"""Logs in an object store: moto's S3 server on loopback, which can be told to fail."""
