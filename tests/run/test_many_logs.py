"""Runs over very many logs: the memory of the driver, the files that a run opens, the logs that it does not select. Logs
that are changed in step: order and interruptions. How work is divided among tasks, and the limits of several brokers."""

from __future__ import annotations

import gc
import pickle
import resource
import signal
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.config.request import CompactionRequest
from compaction.config.resolver import BrokerConfig
from compaction.engine import Job
from compaction.files.durable import DurableSteps
from compaction.files.filesystem import FileSystem
from compaction.files.local import LocalFileSystem
from compaction.files.overlay import OverlayFileSystem
from compaction.log.settings import Settings
from compaction.passes.tasks import Slice
from compaction.report import LogStatus
from compaction.rules.log_view import LogView
from compaction.rules.plan import PolicyPlan, plan_policy
from compaction.run import prepare as prepare_module
from compaction.run.compact import clean_logs
from compaction.run.destination import Destination
from compaction.run.log import skipped_report
from compaction.run.prepare import prepare
from compaction.run.run import change_logs, smallest_broker
from compaction.run.sizing import ShardPlaces, core_utilization, max_records_by_log, sizes
from tests.disk import WatchedFileSystem
from tests.local_job import request_for
from tests.local_passes import LocalPasses
from tests.log.logs import NOW_MS
from tests.log.many_logs import topic_partitions, write_many_logs

T = TypeVar("T")
R = TypeVar("R")

LOGS = 30
TOPICS = sorted({name.topic for name in topic_partitions(LOGS, 10)})
#: bounds of docs/scaling.md for the memory of the driver, with reports and the state of each log
SEGMENT_BYTES = 480
LOG_BYTES = 2_700


def request(log_dir: Path, topics: Sequence[str] = TOPICS, fs: FileSystem | None = None) -> CompactionRequest:
    return request_for(log_dir, NOW_MS + 1_000, dict.fromkeys(topics, {"cleanup.policy": "compact"}), fs=fs)


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

    tracemalloc.start()
    try:
        prepared = prepare(output, call, plan, start)
        reports = [skipped_report(log.plan) for log in prepared if log.is_planned]
        gc.collect()
        assert reports
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
    report = clean_logs(LocalPasses, request(tmp_path, ["topic-00001"], files), files)
    assert [(log.topic, log.partition, log.status) for log in report.logs] == [
        ("topic-00001", partition, LogStatus.CLEANED) for partition in range(10)
    ]
    others = f"{tmp_path}/topic-"
    accessed = {path for operation in files.log for path in (operation.path, operation.target) if path.startswith(others)}
    assert accessed and all(path.startswith(f"{others}00001-") for path in accessed)


def test_a_run_opens_few_files_at_once(tmp_path: Path) -> None:
    write_many_logs(tmp_path, LOGS, 3 * LOGS, dirty=LOGS)
    limits, own = resource.getrlimit(resource.RLIMIT_NOFILE), len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (own + 32, limits[1]))
    try:
        report = clean_logs(LocalPasses, request(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
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


FULL = 1000
SMALL_MAP = BrokerConfig(dedupe_buffer_bytes=1 << 20, load_factor=0.9)
SLOW = BrokerConfig(dedupe_buffer_bytes=1 << 30, load_factor=0.8, io_max_bytes_per_second=1000.0)
USUAL = BrokerConfig()


def part(log: int, offsets: int, size_bytes: int) -> Slice:
    return Slice(log, 0, "x", 100, 100 + offsets, 0, size_bytes, 0)


def loads(logs: dict[int, tuple[int, int]], places: ShardPlaces) -> Counter[int]:
    """Entries by task, if those of each log are spread evenly over its shards."""
    found: Counter[int] = Counter()
    for log, (count, entries) in logs.items():
        for shard in range(count):
            found[places((log, shard))] += -(-entries // count)
    return found


@pytest.mark.parametrize(("tasks", "share"), [([5, 5], 1.0), ([10], 0.5), ([4, 4, 4], 0.75), ([], 1.0), ([0], 1.0)])
def test_core_utilization_is_the_fraction_of_time_until_the_last_task_ends(tasks: list[int], share: float) -> None:
    assert core_utilization(tasks, 2) == share


def test_a_record_has_its_own_offset_and_takes_at_least_a_byte() -> None:
    assert max_records_by_log([part(0, 7, 500), part(1, 900, 30), part(0, 5, 500)]) == {0: 12, 1: 30}


def test_thousands_of_small_logs_need_few_tasks() -> None:
    logs = dict.fromkeys(range(1200), (1, 5))
    places = ShardPlaces.of(logs, 2 * FULL, 4)
    assert places.parts == 4
    assert set(loads(logs, places).values()) == {1500}


def test_there_are_no_more_tasks_than_shards() -> None:
    assert ShardPlaces.of({0: (1, 5), 1: (2, 9)}, 2 * FULL, 4).parts == 3
    assert ShardPlaces.of({0: (1, 0)}, 2 * FULL, 4) == ShardPlaces(1, {0: 0})


def test_full_shards_are_spread_over_all_tasks() -> None:
    logs = {log: (1, FULL if log % 4 == 0 else 1) for log in range(96)}
    places = ShardPlaces.of(logs, 2 * FULL, 4)
    assert places.parts == 5
    assert max(loads(logs, places).values()) < 6 * FULL


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, FULL)), min_size=1, max_size=60), st.integers(1, 8))
def test_no_task_exceeds_the_average_by_more_than_a_shard(shape: list[tuple[int, int]], at_least: int) -> None:
    logs = {log: (shards, shards * fill) for log, (shards, fill) in enumerate(shape)}
    places = ShardPlaces.of(logs, 2 * FULL, at_least)
    share = sum(entries for _, entries in logs.values()) / places.parts
    assert max(loads(logs, places).values()) <= share + FULL


def test_a_shard_fits_into_the_dedupe_buffer() -> None:
    assert sizes([1 << 30], 2, 24 * 1000, 0.5).shard_entries == 500
    assert sizes([], 2, 1, 0.5).shard_entries == 1


@pytest.mark.parametrize(("gigabytes", "tasks"), [(1, 2), (8, 2), (9, 4), (33, 10)])
def test_all_tasks_of_pass_1_read_equal_amounts_of_a_bounded_size(gigabytes: int, tasks: int) -> None:
    share = sizes([gigabytes << 30], 2, 1 << 27, 0.9).scan_bytes
    assert share * tasks - (gigabytes << 30) in range(tasks)
    assert share <= 4 << 30


def test_each_limit_is_the_tightest_of_any_broker() -> None:
    for brokers in permutations((SMALL_MAP, SLOW, USUAL)):
        found = smallest_broker(brokers)
        assert found.dedupe_buffer_bytes == 1 << 20
        assert found.io_max_bytes_per_second == 1000.0
        assert found.load_factor == 0.8
    assert (smallest_broker([SLOW]), smallest_broker([])) == (SLOW, BrokerConfig())
