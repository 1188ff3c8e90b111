"""Tasks that fail the way tasks fail, put in the place of the real ones by ``retry_job``; executors import them by name.

Each fault happens a given number of times, counted by files in a directory that all processes see.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from compaction.passes import rewrite as real
from compaction.passes.work import Piece, PieceResult, RewriteLog
from compaction.storage import segment_writer

#: the directory in which faults are counted
MARKS = "FAULTY_TASKS_MARKS"


class Interrupted(BaseException):
    """Ends a task where no task expects it."""


def first_time(name: str, times: int = 1) -> bool:
    """Whether this is one of the first ``times`` calls under this name, in whatever process."""
    for number in range(times):
        try:
            (Path(os.environ[MARKS]) / f"{name}.{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return True
    return False


def _stop_half_way(piece: Piece, log: RewriteLog, marks: Sequence[object], *, dry_run: bool) -> PieceResult:
    """Write some batches of the piece, then end the task."""
    written = segment_writer.OutputFile.write

    def half(self: segment_writer.OutputFile, chunks: Sequence[segment_writer.Chunk]) -> None:
        written(self, [bytes(chunk)[: len(chunk) // 2] for chunk in chunks])
        raise Interrupted("half of it is written")

    segment_writer.OutputFile.write = half  # type: ignore[method-assign]
    try:
        return real.rewrite_piece(piece, log, marks, dry_run=dry_run)  # type: ignore[arg-type]
    finally:
        segment_writer.OutputFile.write = written  # type: ignore[method-assign]


def fails_half_way(piece: Piece, log: RewriteLog, marks: Sequence[object], *, dry_run: bool) -> PieceResult:
    """The first three pieces fail once each, half written."""
    if first_time("half", 3):
        return _stop_half_way(piece, log, marks, dry_run=dry_run)
    return real.rewrite_piece(piece, log, marks, dry_run=dry_run)  # type: ignore[arg-type]


def fails_when_done(piece: Piece, log: RewriteLog, marks: Sequence[object], *, dry_run: bool) -> PieceResult:
    """Three pieces are written whole before their task fails."""
    result = real.rewrite_piece(piece, log, marks, dry_run=dry_run)  # type: ignore[arg-type]
    if first_time("done", 3):
        raise Interrupted("all of it is written")
    return result


def kills_worker(piece: Piece, log: RewriteLog, marks: Sequence[object], *, dry_run: bool) -> PieceResult:
    """The Python worker is killed, twice."""
    result = real.rewrite_piece(piece, log, marks, dry_run=dry_run)  # type: ignore[arg-type]
    if first_time("worker", 2):
        os.kill(os.getpid(), signal.SIGKILL)
    return result


def kills_executor(piece: Piece, log: RewriteLog, marks: Sequence[object], *, dry_run: bool) -> PieceResult:
    """The executor's JVM is killed, once, with the output of the piece written."""
    result = real.rewrite_piece(piece, log, marks, dry_run=dry_run)  # type: ignore[arg-type]
    if first_time("executor"):
        jvm = next(parent for parent in psutil.Process().parents() if parent.name() == "java")
        jvm.kill()
        time.sleep(60)
    return result


def runs_twice(piece: Piece, log: RewriteLog, marks: Sequence[object], *, dry_run: bool) -> PieceResult:
    """One piece hangs until it was started again elsewhere; then both are written at once."""
    marked = Path(os.environ[MARKS])
    slow = f"slow-piece-{piece.output.log}-{piece.number}"
    if first_time("slow"):
        (marked / slow).touch()
        deadline = time.monotonic() + 120
        while not (marked / "again.0").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    elif (marked / slow).exists():
        first_time("again")
    return real.rewrite_piece(piece, log, marks, dry_run=dry_run)  # type: ignore[arg-type]


FAULTS = {
    "half": fails_half_way,
    "done": fails_when_done,
    "worker": kills_worker,
    "executor": kills_executor,
    "twice": runs_twice,
}
