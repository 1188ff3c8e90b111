"""Fixtures of the conformance tests."""

from __future__ import annotations

from tests.kafka.fixtures import gateway

__all__ = ["gateway"]
