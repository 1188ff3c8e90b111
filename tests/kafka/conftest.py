"""Fixtures of the tests of these helpers."""

from __future__ import annotations

from tests.kafka.fixtures import gateway

__all__ = ["gateway"]
