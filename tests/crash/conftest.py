"""Fixtures of the tests on real files and against real Kafka."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.damage.valid_logs import valid_log, write_log
from tests.kafka.fixtures import gateway

__all__ = ["gateway"]


@pytest.fixture
def root(missing: Callable[[str], None]) -> None:
    if os.geteuid() != 0:
        missing("root, which may mount, change owners and become somebody else,")


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two logs, of which one meets the trouble of the test."""
    for topic in ("aside", "subject"):
        write_log(tmp_path / "data" / f"{topic}-0", valid_log("none").files)
    return tmp_path / "data"
