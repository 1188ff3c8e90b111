"""The job in this process, over logs in odd surroundings: small disks, other users, files that vanish during the run."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from compaction.commands import compact
from compaction.config.request import CompactionRequest
from compaction.engine import Job
from compaction.engine_choice import EngineChoice
from compaction.files.filesystem import DiskFileSystem
from compaction.run.compact import clean_logs
from compaction.run.run import Environment
from compaction.run.sizing import Sizes
from compaction.run_report import RunReport
from tests.damage.valid_logs import NOW_MS, valid_log, write_log
from tests.executed import executed
from tests.kafka.encode import Batch, Record
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


class Disturbed(LocalPasses):
    """Passes with hooks: ``before_scan``, ``before_rewrite`` and ``after_rewrite`` are called."""

    events: dict[str, Callable[[], None]] = {}

    def shuffle(self, job: Job, *args: Any, **options: Any) -> Any:
        if job.name == "pass 1":
            self.events.get("before_scan", lambda: None)()
        return super().shuffle(job, *args, **options)

    def run(self, job: Job, *args: Any) -> Any:
        if job.name != "pass 2":
            return super().run(job, *args)
        self.events.get("before_rewrite", lambda: None)()
        done = super().run(job, *args)
        self.events.get("after_rewrite", lambda: None)()
        return done


def run(
    log_dir: Path,
    *options: object,
    events: dict[str, Callable[[], None]] | None = None,
    files: DiskFileSystem | None = None,
    sizes: Sizes | None = None,
) -> Ended:
    """``jobs/compact.py`` without Spark; all file access is through ``files``."""

    class Passes(Disturbed):
        pass

    Passes.events = events or {}

    def carried_out(_: EngineChoice, request: CompactionRequest) -> RunReport:
        return clean_logs(Passes, request, Environment(files, sizes))

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = executed(compact, ["--log-dir", str(log_dir), *OPTIONS, *map(str, options)], carried_out)
    return Ended(code, out.getvalue(), err.getvalue())


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


def run_as_nobody(log_dir: Path, *options: object) -> Ended:
    """The same in a process of an unprivileged user."""
    read, write = os.pipe()

    def work() -> int:
        become_nobody()
        ended = run(log_dir, *options)
        os.write(write, f"{ended.code}\0{ended.out}\0{ended.err}".encode())
        return 0

    child = forked(work)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        code, out, err = pipe.read().decode().split("\0")
    os.waitpid(child, 0)
    return Ended(int(code), out, err)


@contextmanager
def small_disk(place: Path, mebibytes: int) -> Iterator[Path]:
    """A separate file system of this size; needs root."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=755", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def big_batches(base: int, mebibytes: int, *, keys: int) -> list[bytes]:
    """Batches of incompressible values of 256 KiB, with this number of keys."""
    rng = random.Random(base)
    return [
        Batch([Record(base + i, NOW_MS - 10**6, b"key-%d" % (i % keys), rng.randbytes(256 * 1024))]).encode()
        for i in range(4 * mebibytes)
    ]


if sys.platform != "linux":
    raise ImportError("mounts and users are Linux's here")
