"""Faulty tasks, which ``retry_job`` puts around the real ones; executors import them by name.

Each fault occurs a fixed number of times, counted by files in a directory that all processes share.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from compaction.files import local_output
from compaction.files.filesystem import Chunk
from compaction.passes.tasks import OutputPart

Clean = Callable[..., Any]

#: the directory in which faults are counted
MARKS = "FAULTY_TASKS_MARKS"


class Interrupted(BaseException):
    """Fails a task at an unexpected point."""


def first_time(name: str, times: int = 1) -> bool:
    """Whether this is one of the first ``times`` calls under this name, in all processes together."""
    for number in range(times):
        try:
            (Path(os.environ[MARKS]) / f"{name}.{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return True
    return False


def _stop_half_way(clean: Clean, piece: OutputPart, *known: Any) -> Any:
    """Write some batches of the output, then fail the task."""
    written = local_output.LocalOutput.write

    def half(self: local_output.LocalOutput, chunks: Sequence[Chunk]) -> None:
        written(self, [bytes(chunk)[: len(chunk) // 2] for chunk in chunks])
        raise Interrupted("half of it is written")

    local_output.LocalOutput.write = half  # type: ignore[method-assign]
    try:
        return clean(piece, *known)
    finally:
        local_output.LocalOutput.write = written  # type: ignore[method-assign]


def _stop_when_done(clean: Clean, piece: OutputPart, *known: Any) -> Any:
    """Write the complete output, then fail the task."""
    clean(piece, *known)
    raise Interrupted("all of it is written")


def _kill_worker(clean: Clean, piece: OutputPart, *known: Any) -> Any:
    """Write the complete output, then kill the Python worker."""
    result = clean(piece, *known)
    os.kill(os.getpid(), signal.SIGKILL)
    return result


def _kill_executor(clean: Clean, piece: OutputPart, *known: Any) -> Any:
    """Write the complete output, then kill the executor's JVM."""
    result = clean(piece, *known)
    next(parent for parent in psutil.Process().parents() if parent.name() == "java").kill()
    time.sleep(60)
    return result


def fails_in_many_ways(clean: Clean, piece: OutputPart, *known: Any) -> Any:
    """Eight outputs fail once each: three half written, three complete, two when their worker is killed."""
    if first_time(f"piece-{piece.output.log}-{piece.number}"):
        for name, times, fail in (("half", 3, _stop_half_way), ("done", 3, _stop_when_done), ("worker", 2, _kill_worker)):
            if first_time(name, times):
                return fail(clean, piece, *known)
    return clean(piece, *known)


def kills_executor(clean: Clean, piece: OutputPart, *known: Any) -> Any:
    """The executor's JVM is killed once, after a task has written its output."""
    if first_time("executor"):
        return _kill_executor(clean, piece, *known)
    return clean(piece, *known)


def runs_twice(clean: Clean, piece: OutputPart, *known: Any) -> Any:
    """One task hangs until Spark has started it again on another host; then both attempts write at the same time."""
    marked = Path(os.environ[MARKS])
    slow = f"slow-piece-{piece.output.log}-{piece.number}"
    if first_time("slow"):
        (marked / slow).touch()
        deadline = time.monotonic() + 120
        while not (marked / "again.0").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    elif (marked / slow).exists():
        first_time("again")
    return clean(piece, *known)


def one_by_one(fault: Clean, clean: Clean, parts: Sequence[tuple[OutputPart, Any]], known: Any) -> list[Any]:
    """Clean output parts one by one, each with the fault."""

    def alone(piece: OutputPart, survivors: Any, known: Any) -> Any:
        return clean([(piece, survivors)], known)

    return [result for piece, survivors in parts for result in fault(alone, piece, survivors, known)]


FAULTS = {"tasks": fails_in_many_ways, "executor": kills_executor, "twice": runs_twice}
