"""The job on real files, stopped before one of its changes as if it had been killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

from compaction.files.local import LocalFileSystem
from compaction.run import destination
from tests.crash.surroundings import Ended, run
from tests.disk import CHANGES, Operation, Stopped, WatchedFileSystem

#: what is appended to an output counts when it is closed
_COUNTED = CHANGES - {"append", "append_copy", "link_sync"}


def stop() -> NoReturn:
    """Raises in place of the change."""
    raise Stopped


def kill_this_process() -> NoReturn:
    """Really ends the process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process continues")


class StoppingFiles(WatchedFileSystem):
    """Real files; each change is recorded in ``changes``. Change number ``stop_before`` and all later ones do not happen."""

    def __init__(self, stop_before: int | None, stop: Callable[[], NoReturn] = stop) -> None:
        super().__init__(LocalFileSystem(), self._step)
        self.stop_before, self._stop = stop_before, stop
        self.changes: list[str] = []

    def _step(self, operation: Operation) -> None:
        if operation.name not in _COUNTED:
            return
        if len(self.changes) == self.stop_before:
            self._stop()
        _, name, path, target = operation
        what = f"rename to {Path(target).name}:" if name == "rename" else name
        self.changes.append(f"{what} {Path(path).name}")


def run_until(log_dir: Path, stop_before: int | None, *options: object) -> tuple[Ended | None, list[str]]:
    """Run the job, stopped before a change; returns its result, ``None`` if it was stopped, and its changes."""
    files = StoppingFiles(stop_before)
    try:
        return run_in_order(log_dir, files, *options), files.changes
    except Stopped:
        end_process(log_dir)
        return None, files.changes


def run_in_order(log_dir: Path, files: StoppingFiles, *options: object) -> Ended:
    """Run the job; it swaps the logs sequentially, so that the order of its changes is always the same."""
    with patch.object(destination, "LOG_CONCURRENCY", 1):
        return run(log_dir, *options, files=files)


def end_process(log_dir: Path) -> None:
    """Make the claim that of an ended process: this process is still running."""
    for claim in log_dir.glob(".compaction-run.*"):
        claim.write_text(json.dumps({**json.loads(claim.read_text()), "started": "before"}))
