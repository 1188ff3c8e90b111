"""Kafka's side: one ``Cleaner`` per thread with one offset map each, as in a broker, for all logs of a directory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.kafka.cleaner import new_cleaner, select
from tests.kafka.gateway import Clock, Gateway
from tests.kafka.log import KafkaLog, Opening
from tools.benchmark.profiles import Case

NOW_MS = 1_800_000_000_000
SETTINGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}
_PROBES = 200


class Cleaning(NamedTuple):
    """``seconds`` of ``Cleaner.doClean`` for all logs, divided by the number of threads; ``rounds`` of all logs."""

    seconds: float
    rounds: int


def checkpoints(log_dir: Path) -> dict[str, int]:
    """The entries of ``cleaner-offset-checkpoint`` by name of partition directory."""
    file = log_dir / "cleaner-offset-checkpoint"
    lines = [line.split() for line in file.read_text().splitlines()[2:]] if file.exists() else []
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in lines}


def call_seconds(gateway: Gateway) -> float:
    """The time of a call into the JVM, which does not count as Kafka's."""
    system, taken = gateway.cls("java.lang.System"), []
    for _ in range(_PROBES):
        begun = time.perf_counter()
        system.nanoTime()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def clean_all(gateway: Gateway, log_dir: Path, case: Case) -> Cleaning:
    """Clean every log until nothing is dirty; each round ends when the map is full."""
    start, call = checkpoints(log_dir), call_seconds(gateway)
    logs = sorted(path for path in log_dir.iterdir() if path.is_dir())
    threads = case.kafka_threads

    def clean(paths: Iterable[Path]) -> Cleaning:
        cleaner = new_cleaner(gateway, Clock(gateway, NOW_MS).java, case.kafka_map_bytes // threads)
        each = [_clean(gateway, cleaner, path, start.get(path.name, 0), call) for path in paths]
        return Cleaning(sum(one.seconds for one in each), sum(one.rounds for one in each))

    with ThreadPoolExecutor(threads) as pool:
        done = list(pool.map(clean, (logs[k::threads] for k in range(threads))))
    return Cleaning(max(one.seconds for one in done), sum(one.rounds for one in done))


def _clean(gateway: Gateway, cleaner: Any, path: Path, checkpoint: int, call: float) -> Cleaning:
    log = KafkaLog(gateway, path, Opening(NOW_MS, dict(SETTINGS), clean_shutdown=True))
    seconds, rounds = 0.0, 0
    while True:
        selected = select(log, checkpoint)
        end = selected.first_uncleanable_offset
        target = gateway.cls("org.apache.kafka.storage.internals.log.LogToClean")(
            log.java, selected.first_dirty_offset, end, False
        )
        begun = time.perf_counter()
        outcome = cleaner.doClean(target, NOW_MS)
        seconds += max(0.0, time.perf_counter() - begun - call)
        rounds += 1
        checkpoint = int(outcome.getKey())
        if checkpoint >= end:
            break
    log.close()
    return Cleaning(seconds, rounds)
