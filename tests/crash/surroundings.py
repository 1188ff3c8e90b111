"""The job in this process, over logs in odd surroundings: small disks, other users, files that vanish during the run. It can be
stopped before one of its changes as if it had been killed."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn
from unittest.mock import patch

from compaction.commands import compact
from compaction.config.request import CompactionRequest
from compaction.engine import Job
from compaction.engine_choice import EngineChoice
from compaction.files.filesystem import DiskFileSystem
from compaction.files.local import LocalFileSystem
from compaction.formats.checkpoints import parse_offset_checkpoint
from compaction.names import CLEANER_OFFSETS
from compaction.report import RunReport
from compaction.run import destination
from compaction.run.compact import clean_logs
from compaction.run.sizing import Sizes
from tests.damage.valid_logs import NOW_MS, look_at, valid_log, write_log
from tests.disk import CHANGES, Operation, Stopped, WatchedFileSystem
from tests.executed import executed
from tests.local_passes import LocalPasses

OPTIONS = ("--set", "cleanup.policy=compact", "min.cleanable.dirty.ratio=0", "--as-of-ms", str(NOW_MS))
NOBODY = 65_534


def make_logs(place: Path) -> Path:
    """A log directory of two equal logs."""
    for topic in ("aside", "subject"):
        write_log(place / f"{topic}-0", valid_log("none").files)
    return place


class Ended(NamedTuple):
    """The exit code and the output of the command."""

    code: int
    out: str
    err: str


def cleaned_topics(log_dir: Path) -> set[str]:
    """The topics of the logs that were cleaned, by their checkpoints."""
    path = log_dir / CLEANER_OFFSETS
    return {name.topic for name in parse_offset_checkpoint(path.read_text(), str(path))} if path.exists() else set()


def only_the_subject_failed(ended: Ended, log_dir: Path, before: object, message: str, results: Path | None) -> None:
    """The subject's files are as ``before``, and the only error says why; the other log was cleaned into ``results``.

    :param results: ``None`` if the run was dry
    """
    assert ended.code == 1
    # a line about the cache of compiled kernels is allowed: user nobody has no cache yet
    (error,) = (line for line in ended.err.splitlines() if line.startswith("error: "))
    assert re.search(f"^error: subject-0: .*{message}", error), ended.err
    assert look_at(log_dir / "subject-0") == before
    if results is not None:
        assert cleaned_topics(results) == {"aside"}
        assert results == log_dir or not (results / "subject-0").exists()


class Disturbed(LocalPasses):
    """Passes that call ``before_scan``, ``before_rewrite`` and ``after_rewrite`` of ``events``."""

    def __init__(self, events: Mapping[str, Callable[[], None]]) -> None:
        super().__init__()
        self._events = events

    def shuffle(self, job: Job, *args: Any, **options: Any) -> Any:
        self._call("before_scan", job.name == "pass 1")
        return super().shuffle(job, *args, **options)

    def run(self, job: Job, *args: Any) -> Any:
        self._call("before_rewrite", job.name == "pass 2")
        done = super().run(job, *args)
        self._call("after_rewrite", job.name == "pass 2")
        return done

    def _call(self, event: str, due: bool) -> None:
        if due and event in self._events:
            self._events[event]()


def run(
    log_dir: Path,
    *options: object,
    events: Mapping[str, Callable[[], None]] = MappingProxyType({}),
    files: DiskFileSystem | None = None,
    sizes: Sizes | None = None,
    engine: Callable[[], Any] | None = None,
) -> Ended:
    """``jobs/compact.py`` without Spark, unless ``engine`` is one on it; all file access is through ``files``."""

    def carried_out(_: EngineChoice, request: CompactionRequest) -> RunReport:
        return clean_logs(engine or partial(Disturbed, events), request, files, sizes)

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = executed(compact, ["--log-dir", str(log_dir), *OPTIONS, *map(str, options)], carried_out)
    return Ended(code, out.getvalue(), err.getvalue())


#: what is appended to an output counts when it is closed
_COUNTED = CHANGES - {"append", "link_sync"}


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


def forked(work: Callable[[], int]) -> int:
    """Fork a process that exits with the result of ``work``; returns its id."""
    with warnings.catch_warnings():
        # the child only runs plain Python
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return child


def become_nobody() -> None:
    """Make this process one of an unprivileged user."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def open_up(place: Path) -> None:
    """Let other users reach a directory."""
    for above in place.parents:
        if above.stat().st_mode & 0o001 == 0:
            above.chmod(above.stat().st_mode | 0o011)


def as_nobody(attempt: Callable[[], bytes]) -> bytes:
    """What an attempt of an unprivileged user returns, in a process of its own; an error is nothing."""
    read, write = os.pipe()

    def work() -> int:
        become_nobody()
        with os.fdopen(write, "wb") as pipe:
            pipe.write(attempt())
        return 0

    child = forked(work)
    os.close(write)
    with os.fdopen(read, "rb") as found:
        data = found.read()
    os.waitpid(child, 0)
    return data


def run_as_nobody(log_dir: Path, *options: object) -> Ended:
    """The same in a process of an unprivileged user."""

    def attempt() -> bytes:
        ended = run(log_dir, *options)
        return f"{ended.code}\0{ended.out}\0{ended.err}".encode()

    code, out, err = as_nobody(attempt).decode().split("\0")
    return Ended(int(code), out, err)


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[Path]:
    """Something mounted at a place; needs root."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", *options, str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def small_disk(place: Path, mebibytes: int) -> AbstractContextManager[Path]:
    """A separate file system of this size; needs root."""
    return mounted(place, "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=755", "tmpfs")


if sys.platform != "linux":
    raise ImportError("mounts and users are Linux's here")
