"""Progress of a run on Spark: what its tasks have read, by counters that they share, and by its completed tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compaction.engines.spark import watched
from compaction.engines.spark_session import ship_package
from compaction.files import read_counter
from compaction.files.local import LocalFileSystem
from compaction.files.segment_file import SegmentReader
from compaction.screen.progress import Progress
from tests.dumping.segments import write_segment
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MB = 1_000_000


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

    def read_so_far(done_bytes: int) -> None:
        (counts / "a").write_bytes((1000 + done_bytes).to_bytes(8, "little"))
        wait_until(lambda: sum(progress.advanced) >= done_bytes, 30)
        assert sum(progress.advanced) == done_bytes

    with watched(LongTasks(counts), "pass 1", [100, 100], progress.advance):  # type: ignore[arg-type]
        read_so_far(30)
        read_so_far(70)
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
        wait_until(gate.exists)
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
            wait_until(gate.exists)
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
            wait_until(gate.exists)
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
