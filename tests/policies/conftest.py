"""Fixtures of the tests that real Kafka judges, and of those in a browser."""

from __future__ import annotations

from tests.kafka.fixtures import gateway
from tests.policies.browser import browser

__all__ = ["browser", "gateway"]
