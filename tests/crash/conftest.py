"""Fixtures of the tests with real Kafka."""

from __future__ import annotations

from tests.kafka.fixtures import gateway

__all__ = ["gateway"]
