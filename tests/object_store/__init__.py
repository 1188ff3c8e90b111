"""Logs in object stores: servers of their protocols on loopback, which can be told to fail."""
