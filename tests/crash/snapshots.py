"""Snapshots of a running broker's directory, while producers write and its cleaner works, are compacted.

``python -m tools.search --turn snapshots`` takes many. Each is taken after a random number of records. It has the files of one
instant, as that of a volume has, or a power failure in which no write was lost: the broker is stopped by SIGSTOP while
its directory is copied, again if its cleaner has just left nothing to do. One broker is started on the snapshot, one on the
compacted copy. Both must serve the same newest record of each key and the same log ends, the copy nothing that the snapshot
does not have, and both everything that was acknowledged before the snapshot.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from compaction.files.local import LocalFileSystem
from compaction.log.checkpoint_store import read_offsets
from compaction.names import CLEANER_OFFSETS, HIGH_WATERMARKS, TopicPartition
from tests.crash.surroundings import run
from tests.kafka.broker import Broker
from tests.kafka.clients import Clients, Consumed
from tests.kafka.gateway import Gateway, shared_gateway

TOPIC = "keys"
PARTITIONS = 2
KEYS = 200
#: the broker's own cleaner works at the same time
BROKER = {
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "log.segment.delete.delay.ms": "500",
    # nothing beyond the checkpointed high watermark is cleaned
    "replica.high.watermark.checkpoint.interval.ms": "100",
}
CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "40000",
    "min.cleanable.dirty.ratio": "0.3",
    "file.delete.delay.ms": "500",
}
#: key -> the number of the last acknowledged record
Acknowledged = dict[bytes, int]


class Producers:
    """A thread that writes until it is told to end; ``acknowledged`` grows by what the broker has confirmed."""

    def __init__(self, clients: Clients, seed: int, first: int) -> None:
        self.acknowledged: Acknowledged = {}
        self._clients = clients
        self._rng = random.Random(seed)
        self._end = threading.Event()
        self._first = self._number = first
        self._thread = threading.Thread(target=self._write)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Writes during the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._end.set()
            self._thread.join()

    def wait_for(self, records: int) -> None:
        """Returns once so many records were written."""
        while self._number < self._first + records:
            assert self._thread.is_alive(), "the producers have ended"
            time.sleep(0.005)

    def _write(self) -> None:
        with self._clients.producer(compression_type="lz4", linger_ms="1") as producer:
            while not self._end.is_set():
                sent: Acknowledged = {}
                for _ in range(self._rng.randint(1, 60)):
                    self._number += 1
                    key = b"key-%d" % self._rng.randrange(KEYS)
                    value = None if self._rng.random() < 0.1 else b"%d " % self._number + self._rng.randbytes(200)
                    number = ("number", b"%d" % self._number)
                    producer.send(TOPIC, key, value, partition=None, headers=[number])
                    sent[key] = self._number
                producer.flush()
                # a new value, which the other thread reads at any time
                self.acknowledged = {**self.acknowledged, **sent}


def take_snapshot(broker: Broker, target: Path) -> None:
    """Copies the directory as it is at one instant."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        # returns when all of its threads have stopped
        os.waitpid(broker.pid, os.WUNTRACED)
        shutil.copytree(broker.log_dir, target)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def has_dirty_segment(snapshot: Path) -> bool:
    """Whether compaction certainly drops records: a complete segment below the high watermark that was not cleaned."""
    fs, log_dir = LocalFileSystem(), str(snapshot)
    cleaned, watermarks = (read_offsets(fs, log_dir, name) for name in (CLEANER_OFFSETS, HIGH_WATERMARKS))
    for log in (TopicPartition(TOPIC, number) for number in range(PARTITIONS)):
        bases = sorted(int(file.stem) for file in (snapshot / str(log)).glob("*.log"))
        if any(cleaned.get(log, 0) <= base and end <= watermarks.get(log, 0) for base, end in pairwise(bases)):
            return True
    return False


#: by topic, partition and offset
Served = dict[tuple[str, int, int], Consumed]


def served(gateway: Gateway, log_dir: Path, *topics: str, committed_only: bool = False) -> tuple[Served, object]:
    """The records that consumers of a broker on the directory read, and the log end offsets."""
    found: Served = {}
    ends = {}
    with Broker(log_dir) as broker:
        clients = Clients(gateway, broker.bootstrap)
        for topic in topics:
            records = clients.read_all(topic, committed_only=committed_only)
            found.update({(topic, each.partition, each.offset): each for each in records})
            ends.update({(topic, partition): end for partition, (_, end) in clients.end_offsets(topic).items()})
    return found, ends


def newest(records: Served) -> dict[bytes, Consumed]:
    """The newest record of each key."""
    return {each.key: records[where] for where, each in sorted(records.items()) if each.key is not None}


def check_snapshot(gateway: Gateway, snapshot: Path, acknowledged: Acknowledged) -> int:
    """Compacts a snapshot and compares what brokers serve; returns how many records compaction dropped.

    :raises AssertionError: they differ, or something acknowledged is missing
    """
    copy = snapshot.with_name(f"{snapshot.name}-compacted")
    # the broker's cleaner may have left little that is dirty
    any_ratio = ("--set", "min.cleanable.dirty.ratio=0")
    done = run(snapshot, "--topic", TOPIC, *any_ratio, "--output-dir", copy, "--as-of-ms", time.time_ns() // 1_000_000)
    assert done.code == 0, done.err
    before, ends_before = served(gateway, snapshot, TOPIC)
    after, ends_after = served(gateway, copy, TOPIC)
    assert ends_after == ends_before
    assert after.items() <= before.items(), "the copy has a record that the snapshot does not have"
    assert newest(after) == newest(before)
    found = {key: int(dict(record.headers)["number"] or 0) for key, record in newest(before).items()}
    assert acknowledged, "the producers have written nothing"
    lost = {key: (number, found.get(key)) for key, number in acknowledged.items() if found.get(key, 0) < number}
    assert not lost, f"acknowledged, and not in the snapshot: {lost}"
    return len(before) - len(after)


def check_snapshots(scratch: Path, count: int, seed: int, seconds: float = math.inf) -> list[int]:
    """Takes and checks snapshots of one broker; returns how many records compaction dropped from each.

    :param seconds: no further snapshot is taken after so long
    """
    deadline = time.monotonic() + seconds
    rng, gateway, dropped = random.Random(seed), shared_gateway(), []
    with Broker(scratch / "broker", BROKER) as broker:
        clients = Clients(gateway, broker.bootstrap)
        clients.create_topic(TOPIC, PARTITIONS, CONFIG)
        acknowledged: Acknowledged = {}
        for number in range(count):
            if number and time.monotonic() >= deadline:
                break
            snapshot = scratch / f"snapshot-{number}"
            producers = Producers(clients, rng.randrange(1 << 30), first=number * 1_000_000)
            with producers.writing():
                least = rng.randrange(1_000, 10_000)
                while not snapshot.exists() or not has_dirty_segment(snapshot):
                    shutil.rmtree(snapshot, ignore_errors=True)
                    producers.wait_for(least)
                    least += 100
                    acknowledged = {**acknowledged, **producers.acknowledged}
                    take_snapshot(broker, snapshot)
            dropped.append(check_snapshot(gateway, snapshot, acknowledged))
            acknowledged = {**acknowledged, **producers.acknowledged}
            for path in (snapshot, snapshot.with_name(f"{snapshot.name}-compacted")):
                shutil.rmtree(path)
    return dropped
