"""Logs in object stores: servers of their protocols on loopback, with injected failures."""
