"""Fixtures of the tests that real Kafka judges."""

from __future__ import annotations

from tests.kafka.fixtures import gateway

__all__ = ["gateway"]
