"""Runs over very many logs: the memory of the driver, the files that a run opens, and the logs that it does not select. Logs
that are changed in step: order and interruptions."""

from __future__ import annotations

import gc
import pickle
import resource
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from compaction.config.request import CompactionRequest
from compaction.engine import Job
from compaction.files.durable import DurableSteps
from compaction.files.local import LocalFileSystem
from compaction.files.overlay import OverlayFileSystem
from compaction.log.discover import Selector, discover
from compaction.log.settings import Settings
from compaction.report import LogStatus
from compaction.rules.log_view import LogView
from compaction.rules.plan import PolicyPlan, plan_policy
from compaction.run import prepare as prepare_module
from compaction.run.compact import clean_logs
from compaction.run.destination import Destination
from compaction.run.log import skipped_report
from compaction.run.prepare import prepare
from compaction.run.run import change_logs
from tests.disk import WatchedFileSystem
from tests.local_job import KAFKA, resolver_of
from tests.local_passes import LocalPasses
from tests.log.logs import NOW_MS
from tests.log.many_logs import topic_partitions, write_many_logs

T = TypeVar("T")
R = TypeVar("R")

LOGS = 30
ALL = Selector()
#: bounds of docs/scaling.md for the memory of the driver, with reports and the state of each log
SEGMENT_BYTES = 480
LOG_BYTES = 2_700


def request(log_dir: Path, selector: Selector = ALL) -> CompactionRequest:
    return CompactionRequest(
        (str(log_dir),),
        discover(LocalFileSystem(), [str(log_dir)], selector),
        as_of_ms=NOW_MS + 1_000,
        resolver=resolver_of({name.topic: {"cleanup.policy": "compact"} for name in topic_partitions(LOGS, 10)}),
        kafka_version=KAFKA,
    )


def sent(value: T) -> T:
    """A value as another process gets it."""
    received: T = pickle.loads(pickle.dumps(value))  # noqa: S301 - of this process
    return received


class InWorkers(LocalPasses):
    """Its tasks are those of other processes, also the shortest ones."""

    def run(self, job: Job, source: Any, work: Callable[..., R]) -> list[R]:
        assert job.in_workers
        return sent(super().run(job, sent(source), work))


def retained_bytes(log_dir: Path, segments: int, start: Callable[[], LocalPasses] | None) -> int:
    """The bytes that a run retains of its logs, their plans and reports."""
    write_many_logs(log_dir, LOGS, segments)
    call, output = request(log_dir), Destination(OverlayFileSystem(LocalFileSystem()))

    def plan(view: LogView, settings: Settings) -> PolicyPlan:
        return plan_policy(view, settings.topic, now_ms=call.as_of_ms)

    def planned() -> object:
        prepared = prepare(output, call, plan, start)
        return prepared, [skipped_report(log.plan) for log in prepared if log.is_planned]

    tracemalloc.start()
    try:
        values = planned()
        gc.collect()
        assert values
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("start", [None, InWorkers])
def test_the_memory_of_a_run_is_bounded_by_logs_and_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[], LocalPasses] | None
) -> None:
    monkeypatch.setattr(prepare_module, "MANY_SEGMENTS", 1)
    # fills caches
    retained_bytes(tmp_path / "first", LOGS, start)
    few = retained_bytes(tmp_path / "few", 2 * LOGS, start)
    many = retained_bytes(tmp_path / "many", 8 * LOGS, start)
    segment_bytes = (many - few) / (6 * LOGS)
    assert segment_bytes < SEGMENT_BYTES
    assert few / LOGS - 2 * segment_bytes < LOG_BYTES


def test_logs_of_other_topics_are_not_accessed(tmp_path: Path) -> None:
    write_many_logs(tmp_path, LOGS, 3 * LOGS, dirty=LOGS)
    files = WatchedFileSystem(LocalFileSystem())
    logs = discover(files, [str(tmp_path)], Selector.parse(["topic-00001"]))
    report = clean_logs(LocalPasses, replace(request(tmp_path), logs=logs), files)
    assert [(log.topic, log.partition, log.status) for log in report.logs] == [
        ("topic-00001", partition, LogStatus.CLEANED) for partition in range(10)
    ]
    others = f"{tmp_path}/topic-"
    accessed = {path for operation in files.log for path in (operation.path, operation.target) if path.startswith(others)}
    assert accessed and all(path.startswith(f"{others}00001-") for path in accessed)


@contextmanager
def open_files(most: int) -> Iterator[None]:
    """Limits the open files of this process to ``most`` more than it has."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (own + most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_run_opens_few_files_at_once(tmp_path: Path) -> None:
    write_many_logs(tmp_path, LOGS, 3 * LOGS, dirty=LOGS)
    with open_files(32):
        report = clean_logs(LocalPasses, request(tmp_path))
    assert report.totals["cleaned"] == LOGS


@contextmanager
def interrupted_by(number: signal.Signals) -> Iterator[None]:
    """The signal is not ignored, as by a shell's background jobs, and ends what is below."""
    usual = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.signal(number, usual)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_logs_in_step_complete_and_starts_no_others(number: signal.Signals) -> None:
    begun: list[int] = []
    ended: list[int] = []

    def work(log: int) -> DurableSteps[None]:
        begun.append(log)
        if log == 0:
            signal.raise_signal(number)
        yield ()
        ended.append(log)

    with interrupted_by(number):
        change_logs(LocalFileSystem(), [(f"/{log}", work(log)) for log in range(6)], 2)
    assert begun == ended == [0, 1]


def test_a_signal_stops_a_copy_at_once() -> None:
    ended: list[int] = []

    def work() -> DurableSteps[None]:
        signal.raise_signal(signal.SIGINT)
        ended.append(0)
        yield ()

    with interrupted_by(signal.SIGINT):
        change_logs(LocalFileSystem(), [("/0", work())], 1)
    assert ended == []


@pytest.mark.parametrize(("logs", "most"), [(5, 2), (1, 2), (5, 1), (0, 2)])
def test_the_results_of_changed_logs_are_in_their_order(logs: int, most: int) -> None:
    def work(log: int) -> DurableSteps[int]:
        yield ()
        return log

    assert change_logs(LocalFileSystem(), [(f"/{log}", work(log)) for log in range(logs)], most) == list(range(logs))
