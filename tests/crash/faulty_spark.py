"""Commands on Spark whose tasks fail, hang, or lose their process or their input:
``python -m tests.crash.faulty_spark PLACE MASTER CASE...``.

Executors import this module by its name. A fault occurs a fixed number of times, counted by files ("marks") in a directory that
all processes share. Each case prints a line of JSON: its name, whether it has the result of an undisturbed run, its errors, and
the marks.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

import psutil

import compaction
from compaction.engine import ByPlace, Item, Job, Source
from compaction.engine_choice import EngineChoice
from compaction.engines.spark import Shuffled, SparkEngine
from compaction.engines.spark_session import build_session
from compaction.files.filesystem import Chunk, File, storage_errors
from compaction.files.local import LocalFileSystem, LocalOutput
from compaction.passes.tasks import OutputPart
from tests.crash.kill import CLUSTER, ROOT
from tests.golden import unpack_sample
from tests.jvm import executor_options
from tests.local_passes import LocalPasses
from tests.passes.test_repeated_tasks import (
    ALL,
    AS_OF_MS,
    LOG,
    compact_copy,
    compact_in_place,
    count,
    digests,
    errors_in,
    running_on,
    without_times,
)

R = TypeVar("R")

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.efficiency.enabled": "false",
}
#: the directory of the marks
MARKS = "FAULTY_SPARK_MARKS"
#: a task with this mark cannot read once the executors have been killed
_FAILS = "fails"


def first_time(name: str, times: int = 1) -> bool:
    """Whether this is one of the first ``times`` calls under this name, in all processes together."""
    for number in range(times):
        try:
            (Path(os.environ[MARKS]) / f"{name}.{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return True
    return False


def marked(name: str) -> bool:
    return (Path(os.environ[MARKS]) / name).exists()


# faults of a task that cleans an output part

#: cleans the part
Clean = Callable[[], Any]


class Interrupted(BaseException):
    """Fails a task at an unexpected point."""


def _stop_half_way(clean: Clean) -> Any:
    """Write some batches of the output, then fail the task."""
    written = LocalOutput.write

    def half(self: LocalOutput, chunks: Sequence[Chunk]) -> None:
        written(self, [bytes(chunk)[: len(chunk) // 2] for chunk in chunks])
        raise Interrupted("half of it is written")

    with patch.object(LocalOutput, "write", half):
        return clean()


def _stop_when_done(clean: Clean) -> Any:
    """Write the complete output, then fail the task."""
    clean()
    raise Interrupted("all of it is written")


def _kill_worker(clean: Clean) -> Any:
    """Write the complete output, then kill the Python worker."""
    clean()
    os.kill(os.getpid(), signal.SIGKILL)


def fails_in_many_ways(clean: Clean, part: OutputPart) -> Any:
    """Eight outputs fail once each: three half written, three complete, two when their worker is killed."""
    if first_time(f"part-{part.output.log}-{part.number}"):
        for name, times, fail in (("half", 3, _stop_half_way), ("done", 3, _stop_when_done), ("worker", 2, _kill_worker)):
            if first_time(name, times):
                return fail(clean)
    return clean()


def kills_executor(clean: Clean, part: OutputPart) -> Any:
    """The executor's JVM is killed once, after a task has written its output."""
    result = clean()
    if first_time("executor"):
        _executor().kill()
        time.sleep(60)
    return result


def runs_twice(clean: Clean, part: OutputPart) -> Any:
    """One task hangs until Spark has started it again on another host; then both attempts write at the same time."""
    slow = f"slow-part-{part.output.log}-{part.number}"
    if first_time("slow"):
        first_time(slow)
        deadline = time.monotonic() + 120
        while not marked("again.0") and time.monotonic() < deadline:
            time.sleep(0.01)
    elif marked(f"{slow}.0"):
        first_time("again")
    return clean()


def kills_all(clean: Clean, part: OutputPart) -> Any:
    """All executors are killed once, after a task has written its output."""
    result = clean()
    _kill_all_once("clean")
    return result


#: by ``at`` of a case; all executors are killed between the passes, too
CLEANING: dict[str, Callable[[Clean, OutputPart], Any]] = {
    "tasks": fails_in_many_ways, "executor": kills_executor, "twice": runs_twice, "between": lambda clean, part: clean(),
    "pass 2": kills_all,
}  # fmt: skip


def _clean(at: str, clean: Callable[..., Any], parts: Sequence[tuple[OutputPart, Any]], known: Any) -> list[Any]:
    """Clean output parts one by one, each with the fault."""
    works = ((partial(clean, [(part, survivors)], known), part) for part, survivors in parts)
    return [result for work, part in works for result in CLEANING[at](work, part)]


# faults of any task: all executors are killed, and a task that begins later cannot read


def _executor() -> psutil.Process:
    """The executor of this Python worker."""
    return next(parent for parent in psutil.Process().parents() if parent.name() == "java")


def _kill_executors(driver: psutil.Process) -> None:
    (Path(os.environ[MARKS]) / "killed").touch()
    for process in driver.children(recursive=True):
        if process.name() == "java" and "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
            process.kill()


def _kill_all_once(name: str) -> None:
    """Called by a task: ends its executor and all others, the first time."""
    if first_time(name):
        parent = _executor().parent()
        assert parent is not None
        _kill_executors(parent)
        time.sleep(60)


@contextmanager
def _reads() -> Iterator[None]:
    """In one task that begins after the executors were killed, reads of the log fail."""
    real = LocalFileSystem.open

    def opened(self: LocalFileSystem, path: str, start: int = 0, end: int | None = None, **options: Any) -> File:
        if end is not None and f"/{LOG}/" in path and marked("killed") and first_time("failed"):
            with storage_errors(path, "read"):
                raise OSError(errno.EIO, "Input/output error")
        return real(self, path, start, end, **options)

    with ExitStack() as stack:
        if marked(_FAILS):
            stack.enter_context(patch.object(LocalFileSystem, "open", opened))
        yield


def _scan(kills: bool, scan: Callable[..., Iterable[Any]], *inputs: Any) -> Iterator[Any]:
    with _reads():
        yield from scan(*inputs)
    if kills:
        _kill_all_once("scan")


def _run(kills: bool, work: Callable[..., R], *inputs: Any) -> R:
    if kills:
        _kill_all_once("run")
    with _reads():
        return work(*inputs)


def _join(kills: bool, join: Callable[[Iterable[Item]], Iterable[R]], items: Iterable[Item]) -> Iterator[R]:
    """The third task kills the executors: one of the first two has ended by then."""
    found = list(items)
    if kills and not first_time("join", 2):
        _kill_all_once("third")
    yield from join(found)


def _lose_shuffle_files() -> None:
    lost = [path for path in Path(os.environ["SPARK_LOCAL_DIRS"]).rglob("shuffle_*") if path.is_file()]
    assert lost
    for path in lost:
        path.unlink()


class Disturbed(SparkEngine):
    """``at`` is that of a case."""

    at = ""

    def run(self, job: Job, source: Any, work: Any) -> list[Any]:
        if job.name == "pass 2" and self.at in CLEANING:
            if self.at == "between":
                _kill_executors(psutil.Process())
            if self.at in ("tasks", "executor"):
                _lose_shuffle_files()
            work = partial(work, clean=partial(_clean, self.at, work.keywords["clean"]))
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


# the commands: each returns its report as a document, and perhaps digests of its ``files``


def erase(log_dir: Path) -> dict[str, Any]:
    changed = log_dir.with_name("changed")
    shutil.rmtree(changed, ignore_errors=True)
    shutil.copytree(log_dir, changed, copy_function=shutil.copy2)
    report = compaction.erase(changed, topics="payments", where="regex=.*", as_of=AS_OF_MS)
    return report.to_dict() | {"files": digests(changed)}


def verify_copy(log_dir: Path) -> dict[str, Any]:
    if not (copied := log_dir.with_name("copied")).exists():
        compaction.compact(log_dir, output_dir=copied, engine="local", **ALL)
    return compaction.verify(log_dir, copied, **ALL).to_dict()


class Case(NamedTuple):
    """``at`` is a fault in pass 2 (``CLEANING``), or where else all executors are killed: in pass 1, a join, another task. With
    ``fails`` a repeated task cannot read."""

    command: Callable[[Path], dict[str, Any]]
    at: str
    fails: bool = False

    def __str__(self) -> str:
        return f"{self.command.__name__}, {self.at}"


CASES = (
    Case(compact_in_place, "tasks"), Case(compact_in_place, "twice"), Case(compact_in_place, "executor"),
    Case(compact_copy, "pass 1"), Case(compact_copy, "between", True), Case(compact_in_place, "pass 2", True),
    Case(count, "join", True), Case(verify_copy, "join", True), Case(erase, "run", True),
)  # fmt: skip


def results(place: Path, master: str, cases: Sequence[Case]) -> dict[Case, dict[str, Any]]:
    """Runs cases in a process of their own; what each prints."""
    command = [sys.executable, "-m", "tests.crash.faulty_spark", str(place), master, *map(str, cases)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [line["case"] for line in lines] == list(map(str, cases))
    return dict(zip(cases, lines, strict=True))


def compared(report: dict[str, Any]) -> Any:
    """What is the same by every engine: files, counts, or verdicts."""
    return report.get("files") or report.get("topics") or without_times(report["logs"])


def _running_on(passes: Disturbed, case: Case) -> AbstractContextManager[object]:
    """In many small parts if outputs are cleaned in place; the other cases count on tasks that read much of a log."""
    if case.command is compact_in_place:
        return running_on(passes)
    return patch.object(EngineChoice, "passes", lambda *_: lambda: passes)


def main(place: Path, master: str, names: Sequence[str]) -> None:
    os.environ.update({
        MARKS: str(place / "marks"), "SPARK_LOCAL_DIRS": str(place / "scratch"), "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable,
    })  # fmt: skip
    log_dir, marks = unpack_sample(place), place / "marks"
    marks.mkdir()
    cases = [case for case in CASES if str(case) in names]
    with running_on(LocalPasses()):
        undisturbed = {command: compared(command(log_dir)) for command in {case.command for case in cases}}
    session = build_session(
        "faulty tasks",
        extra={
            "spark.master": master,
            "spark.ui.enabled": "false",
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            f"spark.executorEnv.{MARKS}": str(marks),
            "spark.executor.memory": "512m",
            **executor_options(),
            **({} if master == CLUSTER else SPECULATION),
            # for what is lost: in place of three times 5 s
            "spark.shuffle.io.retryWait": "100ms",
        },
    )
    for case in cases:
        shutil.rmtree(marks)
        marks.mkdir()
        if case.fails:
            (marks / _FAILS).touch()
        Disturbed.at = case.at
        with _running_on(Disturbed(session.sparkContext), case):
            report = case.command(log_dir)
        result, expected = compared(report), undisturbed[case.command]
        found = {
            "case": str(case),
            "equal": result == expected,
            "errors": sorted(set(errors_in(report))),
            "faults": sorted(mark.name for mark in marks.iterdir() if "-" not in mark.name),
        }
        if case.command is compact_in_place:
            found["unchanged"] = result[LOG] == digests(log_dir)[LOG]
            found["others"] = all(result[log] == expected[log] for log in result if log != LOG)
        print(json.dumps(found), flush=True)
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
