"""What a user sees while a run works: plain lines, bars on a terminal, and tasks of a Spark job turned into bytes."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compaction.engines.spark import watched
from compaction.engines.spark_session import ship_package
from compaction.files import read_counter
from compaction.files.local import LocalFileSystem
from compaction.files.segment_file import SegmentReader
from compaction.screen.progress import LINE_INTERVAL_S, Progress, StatusLine
from tests.dumping.segments import write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MB = 1_000_000


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_long_pass_prints_at_most_one_line_per_interval(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress(partial(print, file=stream), clock) as progress:
        progress.start("copy", 1000 * MB)
        for _ in range(8):
            clock.now_s += LINE_INTERVAL_S / 2
            progress.advance(100 * MB)
        progress.done("copy")
    assert stream.getvalue().splitlines() == [
        "copy: 200.0 MB of 1.0 GB (20%), 20.0 MB/s, 40.0 s left",
        "copy: 400.0 MB of 1.0 GB (40%), 20.0 MB/s, 30.0 s left",
        "copy: 600.0 MB of 1.0 GB (60%), 20.0 MB/s, 20.0 s left",
        "copy: 800.0 MB of 1.0 GB (80%), 20.0 MB/s, 10.0 s left",
        "copy: 1.0 GB in 40.0 s, 25.0 MB/s",
    ]


def test_a_pass_without_a_byte_done_has_no_estimate_of_time_left(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress(partial(print, file=stream), clock) as progress:
        progress.start("copy", MB)
        clock.now_s += LINE_INTERVAL_S
        progress.advance(0)
    assert stream.getvalue() == "copy: 0 B of 1.0 MB (0%), 0 B/s\n"


def test_an_empty_pass_prints_one_line(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress(partial(print, file=stream), clock) as progress:
        progress.start("copy", 0)
        clock.now_s += 2 * LINE_INTERVAL_S
        progress.advance(0)
        progress.done("copy")
    assert stream.getvalue() == "copy: 0 B in 20.0 s, 0 B/s\n"


def test_bytes_beyond_the_total_do_not_count(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress(partial(print, file=stream), clock) as progress:
        progress.start("copy", 10 * MB)
        clock.now_s += LINE_INTERVAL_S
        progress.advance(9 * MB)
        clock.now_s += LINE_INTERVAL_S
        progress.advance(9 * MB)
        progress.done("copy")
    assert stream.getvalue().splitlines() == [
        "copy: 9.0 MB of 10.0 MB (90%), 900.0 kB/s, 1.1 s left",
        "copy: 10.0 MB in 20.0 s, 500.0 kB/s",
    ]


def test_bytes_between_passes_are_ignored(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress(partial(print, file=stream), clock) as progress:
        progress.advance(MB)
        progress.start("offset map", MB)
        progress.done("offset map")
        progress.advance(MB)
    assert len(stream.getvalue().splitlines()) == 1


def test_ending_a_pass_that_is_not_running_is_an_error(clock: Clock) -> None:
    with Progress(partial(print, file=io.StringIO()), clock) as progress, pytest.raises(KeyError, match="copy"):
        progress.done("copy")


def test_a_terminal_gets_a_bar_with_bytes_and_rate(clock: Clock) -> None:
    lines, terminal = io.StringIO(), io.StringIO()
    with Progress(partial(print, file=lines), clock, StatusLine(terminal, lambda: 120, clock)) as progress:
        progress.start("offset map", 100 * MB)
        clock.now_s += 2
        progress.advance(50 * MB)
        deadline = time.monotonic() + 20
        while "50%" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
        progress.done("offset map")
    assert "\r\x1b[2Koffset map  ────" in terminal.getvalue()
    assert "━━━━━━━━━━━━────────────   50% of 100.0 MB, 25.0 MB/s, 2.0 s left" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")
    assert lines.getvalue() == "offset map: 100.0 MB in 2.0 s, 50.0 MB/s\n"


def test_many_threads_may_advance_one_pass(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress(partial(print, file=stream), clock) as progress:
        progress.start("copy", 8000 * MB)

        def advance_often() -> None:
            for _ in range(500):
                progress.advance(MB)

        threads = [threading.Thread(target=advance_often) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        clock.now_s += LINE_INTERVAL_S
        progress.advance(0)
    assert stream.getvalue().startswith("copy: 4.0 GB of 8.0 GB (50%)")


class Recorder(Progress):
    """Remembers what it was told, besides showing it."""

    def __init__(self) -> None:
        super().__init__(str)
        self.advanced: list[int] = []
        self.before_the_gate = 0

    def advance(self, done_bytes: int) -> None:
        self.advanced.append(done_bytes)
        super().advance(done_bytes)

    @contextmanager
    def opens(self, gate: Path, done_bytes: int) -> Iterator[None]:
        """Opens a gate once so many bytes are counted, or after half a minute; notes what was counted by then."""

        def open_it() -> None:
            deadline = time.monotonic() + 30
            while sum(self.advanced) < done_bytes and time.monotonic() < deadline:
                time.sleep(0.02)
            self.before_the_gate = sum(self.advanced)
            gate.touch()

        opener = threading.Thread(target=open_it)
        opener.start()
        yield
        opener.join()


def wait_for(gate: Path) -> None:
    deadline = time.monotonic() + 60
    while not gate.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(gate)
        time.sleep(0.02)


class LongTasks:
    """A Spark context none of whose tasks has completed."""

    def __init__(self, counts: Path) -> None:
        self.environment = {read_counter.VARIABLE: str(counts)}

    def getLocalProperty(self, name: str) -> str:  # noqa: N802
        return "pass 1"

    def statusTracker(self) -> LongTasks:  # noqa: N802
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802
        return []


def test_a_pass_advances_before_any_of_its_tasks_has_completed(tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    counts.mkdir()
    # of an earlier pass
    (counts / "a").write_bytes((1000).to_bytes(8, "little"))
    progress = Recorder()
    progress.start("pass 1", 200)
    with watched(LongTasks(counts), "pass 1", [100, 100], progress.advance):  # type: ignore[arg-type]
        for total in (1030, 1070):
            (counts / "a").write_bytes(total.to_bytes(8, "little"))
            deadline = time.monotonic() + 30
            while sum(progress.advanced) < total - 1000 and time.monotonic() < deadline:
                time.sleep(0.02)
            assert sum(progress.advanced) == total - 1000
        # what is read again does not count twice
        (counts / "a").write_bytes((9000).to_bytes(8, "little"))
    assert sum(progress.advanced) == 200


@pytest.mark.spark
def test_tasks_of_a_session_count_what_they_read(spark: SparkSession, tmp_path: Path) -> None:
    sc = spark.sparkContext
    ship_package(spark)
    made = write_segment(tmp_path / "long-0", batches=100)
    size, gate = made.path.stat().st_size, tmp_path / "gate"
    progress = Recorder()

    def read_and_wait(path: str) -> int:
        with SegmentReader(LocalFileSystem(), path, 0, size) as reader:
            blocks = len(list(reader.blocks(check_crc=True)))
        wait_for(gate)
        return blocks

    progress.start("pass 1", size)
    with progress.opens(gate, size), watched(sc, "reads", [size], progress.advance):
        assert sc.parallelize([str(made.path)], 1).map(read_and_wait).collect() == [1]
    assert progress.before_the_gate == size


@pytest.mark.spark
def test_finished_tasks_count_while_later_ones_still_run(spark: SparkSession, tmp_path: Path) -> None:
    sc = spark.sparkContext
    gate = tmp_path / "gate"
    progress = Recorder()

    def last_one_waits(task: int, rows: Iterable[int]) -> Iterable[tuple[int, int]]:
        if task == 3:
            wait_for(gate)
        yield from ((row, 1) for row in rows)

    progress.start("offset map", 150)
    with progress.opens(gate, 70), watched(sc, "counts-while-running", [10, 20, 40, 80], progress.advance):
        total = sc.range(4, numSlices=4).mapPartitionsWithIndex(last_one_waits).reduceByKey(lambda a, b: a + b, 2).count()
    assert total == 4
    assert progress.before_the_gate == 70
    assert sum(progress.advanced) == 150


@pytest.mark.spark
def test_a_stage_of_the_same_size_that_an_earlier_job_has_run_does_not_hide_the_one_that_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    sc = spark.sparkContext
    gate = tmp_path / "gate"
    progress = Recorder()
    scanned = sc.range(40, numSlices=4).map(lambda row: (row % 2, 1)).reduceByKey(lambda a, b: a + b, 2)
    assert scanned.count() == 2

    def last_one_waits(task: int, rows: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
        if task == 3:
            wait_for(gate)
        yield from rows

    progress.start("pass 2", 150)
    with progress.opens(gate, 70), watched(sc, "after-an-earlier-job", [10, 20, 40, 80], progress.advance):
        found = scanned.partitionBy(4).mapPartitionsWithIndex(last_one_waits).collect()
    assert sorted(found) == [(0, 20), (1, 20)]
    assert progress.before_the_gate == 70


@pytest.mark.spark
def test_a_second_job_in_the_same_group_starts_from_nothing(spark: SparkSession) -> None:
    sc = spark.sparkContext
    for _ in range(2):
        progress = Recorder()
        with watched(sc, "twice", [5, 6], progress.advance):
            sc.range(2, numSlices=2).count()
        assert sum(progress.advanced) == 11


@pytest.mark.spark
def test_a_failed_job_does_not_count_as_done_and_its_error_passes_through(spark: SparkSession) -> None:
    sc = spark.sparkContext
    progress = Recorder()

    def fail(_: int) -> int:
        raise ValueError("no")

    with pytest.raises(Exception, match="ValueError: no"), watched(sc, "fails", [5, 6], progress.advance):
        sc.range(2, numSlices=2).map(fail).count()
    assert sum(progress.advanced) == 0
