"""Commands on a cluster whose executors are all killed, and whose repeated tasks cannot read a log:
``python -m tests.crash.lost_executors LOG_DIR``.

Executors import this module by its name. Each case prints a line of JSON: its name, whether it has the result of an undisturbed
run, its errors, and the faults that occurred.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import psutil

import compaction
from compaction.engine import ByPlace, Item, Job, Source
from compaction.engine_choice import EngineChoice
from compaction.engines.spark import Shuffled, SparkEngine
from compaction.engines.spark_session import build_session
from compaction.files.filesystem import File, storage_errors
from compaction.files.local import LocalFileSystem
from tests.crash.faulty_tasks import MARKS, first_time
from tests.jvm import executor_options

T = TypeVar("T")
R = TypeVar("R")

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = "local-cluster[2,1,1024]"
AS_OF_MS = 1_798_761_600_000
LOG = "payments-0"
ALL: dict[str, Any] = {
    "settings": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0},
    "include_active": True,
    "as_of": AS_OF_MS,
}
#: reads fail once the executors have been killed
_KILLED, _FAILED = "killed", "failed"


def _kill_executors(driver: psutil.Process) -> None:
    (Path(os.environ[MARKS]) / _KILLED).touch()
    for process in driver.children(recursive=True):
        if process.name() == "java" and "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
            process.kill()


def _kill_all() -> None:
    """Called by a task: ends its executor and all others."""
    executor = next(parent for parent in psutil.Process().parents() if parent.name() == "java")
    parent = executor.parent()
    assert parent is not None
    _kill_executors(parent)
    time.sleep(60)


@contextmanager
def _reads() -> Iterator[None]:
    """In one task that begins after the executors were killed, reads of the log fail."""
    real = LocalFileSystem.open
    if not (Path(os.environ[MARKS]) / "fails").exists():
        yield
        return

    def opened(self: LocalFileSystem, path: str, start: int = 0, end: int | None = None, **options: Any) -> File:
        if end is not None and f"/{LOG}/" in path and (Path(os.environ[MARKS]) / _KILLED).exists() and first_time(_FAILED):
            with storage_errors(path, "read"):
                raise OSError(errno.EIO, "Input/output error")
        return real(self, path, start, end, **options)

    LocalFileSystem.open = opened  # type: ignore[method-assign]
    try:
        yield
    finally:
        LocalFileSystem.open = real  # type: ignore[method-assign]


def _scan(kills: bool, scan: Callable[..., Iterable[Any]], *inputs: Any) -> Iterator[Any]:
    with _reads():
        yield from scan(*inputs)
    if kills and first_time("scan"):
        _kill_all()


def _clean(kills: bool, clean: Callable[..., Any], *inputs: Any) -> Any:
    result = clean(*inputs)
    if kills and first_time("clean"):
        _kill_all()
    return result


def _run(kills: bool, work: Callable[..., R], *inputs: Any) -> R:
    if kills and first_time("run"):
        _kill_all()
    with _reads():
        return work(*inputs)


def _join(kills: bool, join: Callable[[Iterable[Item]], Iterable[R]], items: Iterable[Item]) -> Iterator[R]:
    """The third task kills the executors: one of the first two has ended by then."""
    found = list(items)
    if kills and not first_time("join", 2) and first_time("third"):
        _kill_all()
    yield from join(found)


class Disturbed(SparkEngine):
    """``at`` says where the executors are killed."""

    at = ""

    def run(self, job: Job, source: Any, work: Any) -> list[Any]:
        if job.name == "pass 2" and self.at in ("between", "pass 2"):
            if self.at == "between":
                _kill_executors(psutil.Process())
            work = partial(work, clean=partial(_clean, self.at == "pass 2", work.keywords["clean"]))
        elif isinstance(source, Source) and source.items is not None and work.func.__name__ == "_join":
            work = partial(work.func, partial(_join, self.at == "join", *work.args))
        else:
            work = partial(_run, self.at == "run", work)
        return super().run(job, source, work)

    def shuffle(self, job: Job, source: Any, emit: Any, places: Any, *, merges: bool = False) -> Shuffled:
        faulty: Any = partial(_scan, self.at == "pass 1" and merges, emit)
        if isinstance(places, ByPlace):
            places = ByPlace(max(places.parts, 5))
        return super().shuffle(job, source, faulty, places, merges=merges)


def _digests(log_dir: Path) -> dict[str, str]:
    """Of each log."""
    kinds = (".log", ".index", ".timeindex", ".txnindex")
    return {
        directory.name: sha256(
            b"".join(path.name.encode() + path.read_bytes() for path in sorted(directory.iterdir()) if path.suffix in kinds)
        ).hexdigest()
        for directory in sorted(log_dir.iterdir())
        if directory.is_dir() and not directory.name.startswith(".")
    }


def copy(log_dir: Path, spark: Any) -> tuple[Any, Any]:
    output = log_dir.with_name("copy")
    shutil.rmtree(output, ignore_errors=True)
    report = compaction.compact(log_dir, output_dir=output, spark=spark, **ALL).to_dict()
    return report, _digests(output)


def in_place(log_dir: Path, spark: Any) -> tuple[Any, Any]:
    changed = log_dir.with_name("changed")
    shutil.rmtree(changed, ignore_errors=True)
    shutil.copytree(log_dir, changed, copy_function=shutil.copy2)
    report = compaction.compact(changed, spark=spark, **ALL).to_dict()
    return report, _digests(changed)


def erase(log_dir: Path, spark: Any) -> tuple[Any, Any]:
    changed = log_dir.with_name("changed")
    shutil.rmtree(changed, ignore_errors=True)
    shutil.copytree(log_dir, changed, copy_function=shutil.copy2)
    report = compaction.erase(changed, topics="payments", where="regex=.*", as_of=AS_OF_MS, spark=spark).to_dict()
    return report, _digests(changed)


def count(log_dir: Path, spark: Any) -> tuple[Any, Any]:
    report = compaction.count(log_dir, by_partition=True, spark=spark).to_dict()
    return report, report["topics"]


def verify(log_dir: Path, spark: Any) -> tuple[Any, Any]:
    report = compaction.verify(log_dir, log_dir.with_name("copied"), spark=spark, **ALL).to_dict()
    return report, [{name: value for name, value in log.items() if name != "seconds"} for log in report["logs"]]


#: command, where the executors are killed, and whether a repeated task cannot read
CASES: tuple[tuple[Callable[[Path, Any], tuple[Any, Any]], str, bool], ...] = (
    (copy, "pass 1", False),
    (copy, "between", True),
    (in_place, "pass 2", True),
    (count, "join", True),
    (verify, "join", True),
    (erase, "run", True),
)


def errors_in(document: Any) -> Iterator[str]:
    """The texts in a document that name the failed read."""
    if isinstance(document, dict):
        for value in document.values():
            yield from errors_in(value)
    elif isinstance(document, list):
        for value in document:
            yield from errors_in(value)
    elif isinstance(document, str) and "Input/output error" in document:
        yield document


def main(log_dir: Path) -> int:
    marks = Path(os.environ[MARKS])
    compaction.compact(log_dir, output_dir=log_dir.with_name("copied"), engine="local", **ALL)
    undisturbed = {command: command(log_dir, None)[1] for command, _, _ in CASES}
    session = build_session(
        "lost executors",
        extra={
            "spark.master": CLUSTER,
            "spark.ui.enabled": "false",
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            f"spark.executorEnv.{MARKS}": str(marks),
            "spark.executor.memory": "512m",
            **executor_options(),
            "spark.shuffle.io.retryWait": "100ms",
        },
    )
    EngineChoice.passes = lambda self, progress=None: lambda: Disturbed(session.sparkContext)  # type: ignore[method-assign]
    for command, at, fails in CASES:
        shutil.rmtree(marks)
        marks.mkdir()
        if fails:
            (marks / "fails").touch()
        Disturbed.at = at
        report, result = command(log_dir, session)
        found = {
            "case": f"{command.__name__}, {at}",
            "equal": result == undisturbed[command],
            "errors": sorted(set(errors_in(report))),
            "faults": sorted(mark.name for mark in marks.iterdir()),
        }
        if command is in_place:
            found["unchanged"] = result[LOG] == _digests(log_dir)[LOG]
            found["others"] = all(result[log] == undisturbed[command][log] for log in result if log != LOG)
        print(json.dumps(found), flush=True)
    session.stop()
    return 0


if __name__ == "__main__":
    os.environ["SPARK_LOCAL_DIRS"] = tempfile.mkdtemp(prefix="lost-executors-")
    try:
        code = main(Path(sys.argv[1]))
    finally:
        shutil.rmtree(os.environ["SPARK_LOCAL_DIRS"], ignore_errors=True)
    sys.exit(code)
