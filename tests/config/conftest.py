"""Fixtures of the tests that use real Kafka."""

from __future__ import annotations

from tests.kafka.fixtures import gateway

__all__ = ["gateway"]
