"""A disk in memory that has a size, with logs whose outputs do not fit beside them, and a clock that only waits move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from compaction.config.request import CompactionRequest
from compaction.engine import Job
from compaction.files.filesystem import join
from compaction.files.local import FreeSpace
from compaction.formats.checkpoints import format_offset_checkpoint, parse_offset_checkpoint
from compaction.names import CLEANER_OFFSETS, HIGH_WATERMARKS, TopicPartition
from compaction.report import RunReport
from compaction.run import run as run_module
from compaction.run import waves
from compaction.run.compact import clean_logs
from tests.disk import FaultyFileSystem, Operation, Stopped, WatchedFileSystem
from tests.kafka.encode import Batch, Record
from tests.local_job import KAFKA, logs_in, resolver_of
from tests.local_passes import LocalPasses
from tests.log.logs import NOW_MS, build
from tests.trust.scenes import of_a_process_that_is_over

LOG_DIR = "/memory/logs"
_BLOCK_BYTES = 4096
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "index.interval.bytes": "1"}


def disk_of(logs: int, segments: int = 3) -> FaultyFileSystem:
    """A disk with logs ``t0``, ``t1``, …: segments that become one, and an active one."""
    disk = FaultyFileSystem()
    for topic in topics(logs):
        path = f"{LOG_DIR}/{topic}-0"
        disk.mkdir(path)
        for base in range(0, 100 * (segments + 1), 100):
            batches = [_batch(base + number) for number in range(3)]
            for kind, data in build(base, batches, interval=1).files.items():
                disk.write_file(f"{path}/{base:020d}{kind}", data, mtime_ns=(NOW_MS - 50_000) * 1_000_000)
    ends = {TopicPartition(topic, 0): 10**6 for topic in topics(logs)}
    disk.put(join(LOG_DIR, HIGH_WATERMARKS), format_offset_checkpoint(ends).encode())
    disk.put(join(LOG_DIR, "meta.properties"), b"version=1\nnode.id=1\n")
    return disk.settle()


def _batch(offset: int) -> bytes:
    """Of each key the record with the highest offset is retained."""
    return Batch([Record(offset, NOW_MS - 60_000, b"key-%d" % (offset % 100), b"value")]).encode()


def topics(logs: int) -> list[str]:
    return [f"t{number}" for number in range(logs)]


def used_bytes(disk: FaultyFileSystem) -> int:
    """In blocks; a file with several names counts once."""
    return sum(-(-len(file.data) // _BLOCK_BYTES) * _BLOCK_BYTES for file in disk.inodes())


def cleaned_logs(disk: FaultyFileSystem) -> set[str]:
    """The logs whose cleaner checkpoint has moved."""
    path = join(LOG_DIR, CLEANER_OFFSETS)
    text = "" if disk.stat(path) is None else disk.read_bytes(path).decode()
    return {partition.topic for partition in parse_offset_checkpoint(text, path)} if text else set()


class Clock:
    """Takes the place of the module ``time``; ``slept`` has the waits."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class SmallDisk:
    """Runs over ``disk``, whose size is ``size_bytes``.

    :ivar peak: the most bytes in use during a run
    :ivar jobs: the jobs of each run, each of which takes ``job_seconds``
    :ivar margin_bytes: free space that no output may use
    """

    def __init__(self, disk: FaultyFileSystem, size_bytes: int) -> None:
        self.disk, self.size_bytes = disk, size_bytes
        self.peak, self.clock, self.job_seconds = 0, Clock(), 0.0
        self.jobs: list[str] = []
        self.margin_bytes = 0

    @classmethod
    def with_free_share(cls, logs: int, share: float) -> SmallDisk:
        disk = disk_of(logs)
        return cls(disk, int(used_bytes(disk) / (1 - share)))

    def run(self, logs: int, before: Callable[[Operation], None] = lambda _: None, **options: Any) -> RunReport:
        def watch(operation: Operation) -> None:
            if operation.name in ("close", "link_sync", "unlink"):
                self.peak = max(self.peak, used_bytes(self.disk))
            before(operation)

        settings, on_wave = options.pop("settings", {}), options.pop("on_wave", lambda report: None)
        request = CompactionRequest(
            *logs_in(LOG_DIR, topics(logs), self.disk),
            as_of_ms=NOW_MS,
            resolver=resolver_of({topic: {**COMPACT, **settings} for topic in topics(logs)}),
            allow_keyless=True,
            kafka_version=KAFKA,
        )
        with self._surroundings():
            files = WatchedFileSystem(self.disk, watch)
            return clean_logs(self._passes, replace(request, **options), files, on_wave=on_wave)

    def _passes(self) -> LocalPasses:
        def begin(job: Job) -> None:
            self.jobs.append(job.description)
            self.clock.now += self.job_seconds

        class Recorded(LocalPasses):
            def shuffle(self, job: Job, *args: Any, **options: Any) -> Any:
                if job.name == "pass 1":
                    begin(job)
                return super().shuffle(job, *args, **options)

            def run(self, job: Job, *args: Any) -> Any:
                if job.name == "pass 2":
                    begin(job)
                return super().run(job, *args)

        return Recorded()

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        def free_space(_: str) -> FreeSpace:
            return FreeSpace(1, self.size_bytes - used_bytes(self.disk), self.size_bytes)

        with (
            of_a_process_that_is_over(),
            patch.object(waves, "free_space", free_space),
            patch.object(waves, "_MARGIN_BYTES", self.margin_bytes),
            patch.object(waves, "time", self.clock),
            patch.object(run_module, "time", self.clock),
        ):
            yield


def after_a_stop(
    make: Callable[[], SmallDisk], run: Callable[[SmallDisk, Callable[[Operation], None]], object], share: float, *, power: bool
) -> SmallDisk:
    """The disk after a kill, or a power loss, once this share of the operations of a run has been carried out."""
    operations: list[Operation] = []
    run(make(), operations.append)
    stopped, last = make(), int(share * len(operations))

    def stop(operation: Operation) -> None:
        if operation.number >= last:
            raise Stopped

    with pytest.raises(Stopped):
        run(stopped, stop)
    return SmallDisk(stopped.disk.after_power_loss(last) if power else stopped.disk.after_kill(), stopped.size_bytes)


def files_of(disk: FaultyFileSystem, ends: Sequence[str] = ()) -> dict[str, bytes]:
    """All files with their bytes, without claims and those with some suffixes."""
    paths = (path for path in disk.paths() if "/.compaction-run." not in path and not path.endswith(tuple(ends)))
    return {path: disk.read_bytes(path) for path in paths}
