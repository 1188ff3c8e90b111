"""Fixtures of the tests on the sample, and of those in a browser."""

from __future__ import annotations

from tests.policies.browser import browser
from tests.source.conftest import sample

__all__ = ["browser", "sample"]
