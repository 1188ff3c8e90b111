"""Fixtures of the tests in a browser."""

from __future__ import annotations

from tests.policies.browser import browser

__all__ = ["browser"]
