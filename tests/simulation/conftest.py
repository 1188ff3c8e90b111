"""Fixtures of the tests of simulations."""

from __future__ import annotations

from tests.compare.browser import browser
from tests.kafka.fixtures import gateway

__all__ = ["browser", "gateway"]
