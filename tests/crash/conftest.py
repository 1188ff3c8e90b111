"""Fixtures of the tests on real files, some of them against real Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.surroundings import make_logs


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two logs, of which one meets the trouble of the test."""
    return make_logs(tmp_path / "data")
