"""A sample of ``tests.crash.snapshots``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.snapshots import check_snapshots

pytestmark = [pytest.mark.kafka, pytest.mark.crash]


def test_a_snapshot_of_a_running_broker_is_compacted_to_a_copy_that_serves_the_same(tmp_path: Path) -> None:
    assert min(check_snapshots(tmp_path, 2, seed=7)) > 0
