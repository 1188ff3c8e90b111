"""Shows how far a run has come: a bar a pass on a terminal, a plain line every ten seconds anywhere else.

A pass is known by its name and its size in bytes. Spark tells how many tasks of a stage are done, not which; tasks start in
order, so *n* tasks done are taken for the first *n*: exact at the end, off by less than the tasks that run at once before.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from types import TracebackType
from typing import IO, Protocol

from py4j.protocol import Py4JError
from pyspark import SparkContext, StatusTracker
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as RichProgress

#: seconds between two plain lines of a pass
LINE_INTERVAL_S = 10.0
#: seconds between two looks at Spark's status
POLL_INTERVAL_S = 0.2


@dataclass
class _Pass:
    name: str
    total_bytes: int
    started_s: float
    done_bytes: int = 0


class _Display(Protocol):
    """One way of showing passes; called under :class:`Progress`'s lock."""

    def begin(self, each: _Pass) -> None: ...

    def update(self, each: _Pass) -> None: ...

    def finish(self, each: _Pass) -> None: ...

    def close(self) -> None: ...


class Progress:
    """The progress of one run, from its passes' bytes. Safe to call from several threads.

    ``start`` opens a pass, ``advance`` counts for the one opened last, ``done`` closes it. Bytes past a pass's total do not
    count: a stage that Spark runs again must not show more than all.

    :param stream: where to show it; a bar is drawn when it is a terminal that can
    :param now: a clock in seconds
    """

    def __init__(self, stream: IO[str], now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._passes: dict[str, _Pass] = {}
        self._current: _Pass | None = None
        self._display: _Display = _Bars(stream, now) if _can_draw(stream) else _Lines(stream, now)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            self._display.close()

    def start(self, pass_name: str, total_bytes: int) -> None:
        """Opens a pass of ``total_bytes``."""
        with self._lock:
            self._current = self._passes[pass_name] = _Pass(pass_name, total_bytes, self._now())
            self._display.begin(self._current)

    def advance(self, done_bytes: int) -> None:
        """Counts ``done_bytes`` more of the pass opened last; without an open pass nothing happens."""
        with self._lock:
            if self._current is not None:
                self._current.done_bytes = min(self._current.done_bytes + done_bytes, self._current.total_bytes)
                self._display.update(self._current)

    def done(self, pass_name: str) -> None:
        """Closes that pass as wholly done.

        :raises KeyError: no such pass is open
        """
        with self._lock:
            closed = self._passes.pop(pass_name)
            closed.done_bytes = closed.total_bytes
            self._display.finish(closed)
            if self._current is closed:
                self._current = None

    @contextmanager
    def watch_job(self, sc: SparkContext, job_group: str, bytes_per_task: Sequence[int]) -> Iterator[None]:
        """Advances the pass opened last as the tasks of a job finish, as long as the block runs.

        The jobs started in the block run in the job group. Of their stages the last with as many tasks as ``bytes_per_task``
        has entries counts: earlier ones of that size may be those of another pass, whose output is still there, and never run.
        When the block ends without an error, all bytes are counted.
        """
        if sc.getLocalProperty("spark.jobGroup.id") != job_group:
            sc.setJobGroup(job_group, job_group)
        watch = _StageWatch(sc.statusTracker(), job_group, bytes_per_task, self.advance)
        stop = threading.Event()
        thread = threading.Thread(target=watch.run, args=(stop,), name=f"progress of {job_group}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        watch.complete(len(bytes_per_task))


class _StageWatch:
    """Turns the number of finished tasks of one stage into bytes; counts each task once, whatever Spark runs again."""

    def __init__(
        self, tracker: StatusTracker, job_group: str, bytes_per_task: Sequence[int], advance: Callable[[int], None]
    ) -> None:
        self._tracker = tracker
        self._job_group = job_group
        self._bytes_up_to = list(accumulate(bytes_per_task, initial=0))
        self._advance = advance
        self._tasks_done = 0
        self._earlier_jobs = frozenset(tracker.getJobIdsForGroup(job_group))

    def run(self, stop: threading.Event) -> None:
        """Looks every :data:`POLL_INTERVAL_S` until told to stop, or until Spark is gone: the job itself reports that."""
        while not stop.wait(POLL_INTERVAL_S):
            try:
                self.complete(self._finished_tasks())
            except (Py4JError, OSError):
                return

    def complete(self, tasks: int) -> None:
        """Counts the bytes of the first ``tasks`` tasks, less what was counted before."""
        if tasks > self._tasks_done:
            self._advance(self._bytes_up_to[tasks] - self._bytes_up_to[self._tasks_done])
            self._tasks_done = tasks

    def _finished_tasks(self) -> int:
        tasks = len(self._bytes_up_to) - 1
        for job in sorted(set(self._tracker.getJobIdsForGroup(self._job_group)) - self._earlier_jobs):
            info = self._tracker.getJobInfo(job)
            for stage in sorted(info.stageIds, reverse=True) if info is not None else ():
                stage_info = self._tracker.getStageInfo(stage)
                if stage_info is not None and stage_info.numTasks == tasks:
                    return min(int(stage_info.numCompletedTasks), tasks)
        return 0


def _can_draw(stream: IO[str]) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


class _Bars:
    """Bars on a terminal, redrawn by a thread of their own."""

    def __init__(self, stream: IO[str], now: Callable[[], float]) -> None:
        self._bars = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(file=stream),
            get_time=now,
        )
        self._bars.start()
        self._tasks: dict[str, TaskID] = {}

    def begin(self, each: _Pass) -> None:
        self._tasks[each.name] = self._bars.add_task(each.name, total=each.total_bytes)

    def update(self, each: _Pass) -> None:
        self._bars.update(self._tasks[each.name], completed=each.done_bytes)

    def finish(self, each: _Pass) -> None:
        task = self._tasks.pop(each.name)
        self._bars.update(task, completed=each.done_bytes)
        self._bars.stop_task(task)

    def close(self) -> None:
        self._bars.stop()


class _Lines:
    """Plain lines for logs and pipes: none before :data:`LINE_INTERVAL_S` have passed, and one when a pass is done."""

    def __init__(self, stream: IO[str], now: Callable[[], float]) -> None:
        self._stream = stream
        self._now = now
        self._next_line_s = 0.0

    def begin(self, each: _Pass) -> None:
        self._next_line_s = each.started_s + LINE_INTERVAL_S

    def update(self, each: _Pass) -> None:
        now_s = self._now()
        if now_s < self._next_line_s or each.done_bytes == each.total_bytes:
            return
        self._next_line_s = now_s + LINE_INTERVAL_S
        elapsed_s = now_s - each.started_s
        share = each.done_bytes / each.total_bytes
        left_s = elapsed_s * (1 - share) / share if share else None
        left = "" if left_s is None else f", {_duration(left_s)} left"
        amount = f"{decimal(each.done_bytes)} of {decimal(each.total_bytes)} ({share:.0%})"
        self._print(f"{each.name}: {amount}, {_rate(each.done_bytes, elapsed_s)}{left}")

    def finish(self, each: _Pass) -> None:
        elapsed_s = self._now() - each.started_s
        rate = _rate(each.total_bytes, elapsed_s)
        self._print(f"{each.name}: {decimal(each.total_bytes)} in {_duration(elapsed_s)}, {rate}")

    def close(self) -> None:
        self._stream.flush()

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _rate(done_bytes: int, elapsed_s: float) -> str:
    return f"{decimal(round(done_bytes / max(elapsed_s, 0.001)))}/s"


def _duration(seconds: float) -> str:
    """Short, readable and no more exact than useful: ``8.2 s``, ``1 min 10 s``, ``2 h 5 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, whole_seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {whole_seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"
