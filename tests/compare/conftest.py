"""Fixtures of the tests that real Kafka judges, and of those in a browser."""

from __future__ import annotations

from tests.compare.browser import browser
from tests.kafka.fixtures import gateway

__all__ = ["browser", "gateway"]
