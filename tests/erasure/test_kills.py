"""An erasure that is killed before any of its changes leaves a log with every other record; the next run completes it."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from compaction.config.request import CompactionRequest
from compaction.erasure.erase_keys import ErasureRequest, erase_keys
from compaction.erasure.find_matches import Erasure
from compaction.formats.keys import KeyCriteria
from compaction.run import destination
from compaction.run.run import Environment
from tests.crash.surroundings import StoppingFiles, end_process
from tests.disk import Stopped
from tests.erasure.test_erase_keys import SALT, records_in, write_odd
from tests.local_job import logs_in, read_offsets, write_offsets
from tests.local_passes import LocalPasses
from tests.memory import scratch
from tests.passes.random_cases import NOW_MS

KEYS = [b"k", b"k" * 70_000]
CHECKPOINT = {"odd": 5}


def erase_until(log_dir: Path, stop_before: int | None) -> int:
    """Erases, stopped before a change; returns the number of changes."""
    files = StoppingFiles(stop_before)
    base = CompactionRequest(*logs_in(log_dir), as_of_ms=NOW_MS, include_active=True, kafka_version="4.3")
    erasure = Erasure(KeyCriteria.of(pa.array(KEYS, pa.binary())), SALT)
    with patch.object(destination, "LOG_CONCURRENCY", 1):
        try:
            report = erase_keys(LocalPasses, ErasureRequest(base, erasure), Environment(files))
            assert report.exit_code == 0, report.logs[0].reason
        except Stopped:
            end_process(log_dir)
    return len(files.changes)


def test_a_run_killed_before_any_of_its_changes_loses_nothing_else_and_is_completed_by_the_next() -> None:
    with scratch() as root:
        write_odd(root / "whole")
        write_offsets(root / "whole", cleaner_offsets=CHECKPOINT)
        before = records_in(root / "whole")
        changes = erase_until(root / "whole", None)
        expected = {path.name: path.read_bytes() for path in (root / "whole" / "odd-0").iterdir()}
        left = [each for each in before if each.key not in KEYS]
        assert changes > 30
        for stop_before in range(changes):
            log_dir = root / str(stop_before)
            write_odd(log_dir)
            write_offsets(log_dir, cleaner_offsets=CHECKPOINT)
            erase_until(log_dir, stop_before)
            found = records_in(log_dir)
            assert [each for each in found if each.key not in KEYS] == left, stop_before
            erase_until(log_dir, None)
            assert {path.name: path.read_bytes() for path in (log_dir / "odd-0").iterdir()} == expected, stop_before
            assert read_offsets(log_dir, "cleaner_offsets") == CHECKPOINT, stop_before
