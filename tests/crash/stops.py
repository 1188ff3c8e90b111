"""The job on real files, made to stop before any of its changes, as if it had been killed there."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from compaction.storage import destination
from compaction.storage.filesystem import FileStat, LocalFileSystem
from tests.crash.surroundings import Ended, run
from tests.storage.faults import Stopped


class StoppingFiles(LocalFileSystem):
    """Real files; each change is noted in ``log``, and the one numbered ``stop_before`` does not happen."""

    def __init__(self, stop_before: int | None) -> None:
        self.stop_before = stop_before
        self.log: list[str] = []

    def _step(self, what: str, path: str) -> None:
        if len(self.log) == self.stop_before:
            raise Stopped
        self.log.append(f"{what} {Path(path).name}")

    def write_file(self, path: str, data: bytes, like: FileStat | None = None) -> None:
        self._step("write", path)
        super().write_file(path, data, like)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        self._step("copy", target)
        super().copy(source, target, start, length)

    def rename(self, source: str, target: str) -> None:
        self._step(f"rename to {Path(target).name}:", source)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._step("unlink", path)
        super().unlink(path)

    def utime(self, path: str, mtime_ns: int) -> None:
        self._step("utime", path)
        super().utime(path, mtime_ns)

    def fsync(self, path: str) -> None:
        self._step("fsync", path)
        super().fsync(path)

    def fsync_dir(self, path: str) -> None:
        self._step("fsync_dir", path)
        super().fsync_dir(path)


def run_until(log_dir: Path, stop_before: int | None, *options: object) -> tuple[Ended | None, list[str]]:
    """The job, stopped before a change; how it ended, ``None`` where it was stopped, and what it changed.

    It swaps one log after the other, so that its changes come in the same order each time.
    """
    files = StoppingFiles(stop_before)
    with patch.object(destination, "LocalFileSystem", lambda: files), patch.object(destination, "LOGS_AT_ONCE", 1):
        try:
            return run(log_dir, *options), files.log
        except Stopped:
            return None, files.log
