"""The job on real files, made to stop before any of its changes, as if it had been killed there."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

from compaction.engine import destination
from compaction.fs.local import LocalFileSystem
from tests.crash.surroundings import Ended, run
from tests.fs.faults import Stopped
from tests.fs.watched import CHANGES, Operation, WatchedFiles


class StoppingFiles(WatchedFiles):
    """Real files; each change is noted in ``log``, and the one numbered ``stop_before`` and all after it do not happen."""

    def __init__(self, stop_before: int | None) -> None:
        super().__init__(LocalFileSystem(), self._step)
        self.stop_before = stop_before
        self.log: list[str] = []

    def _step(self, operation: Operation) -> None:
        if operation.name not in CHANGES:
            return
        if len(self.log) == self.stop_before:
            raise Stopped
        name, path, target = operation
        what = f"rename to {Path(target).name}:" if name == "rename" else name
        self.log.append(f"{what} {Path(path).name}")


def run_until(log_dir: Path, stop_before: int | None, *options: object) -> tuple[Ended | None, list[str]]:
    """The job, stopped before a change; how it ended, ``None`` where it was stopped, and what it changed.

    It swaps one log after the other, so that its changes come in the same order each time.
    """
    files = StoppingFiles(stop_before)
    with patch.object(destination, "LOG_CONCURRENCY", 1):
        try:
            return run(log_dir, *options, files=files), files.log
        except Stopped:
            _end_process(log_dir)
            return None, files.log


def _end_process(log_dir: Path) -> None:
    """Have the claim be one of a process that has ended, which this one has not."""
    for claim in log_dir.glob(".compaction-run.*"):
        claim.write_text(json.dumps({**json.loads(claim.read_text()), "started": "before"}))
