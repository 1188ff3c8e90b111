"""A chain of copies with ``--since``, each of a source that a broker appends to, has the logs of as many rounds of Kafka's own
cleaner on a log with the same appends."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from compaction.certifier.certificate import Status
from compaction.certifier.verify_request import VerifyRequest
from compaction.config import Resolver, read_toml
from tests.certifier.certify import certify
from tests.conformance.compare import differences
from tests.conformance.ours import clean_in_process, topics_file
from tests.kafka.cleaner import CleanResult, clean_partition_if_due
from tests.kafka.gateway import Gateway
from tests.kafka.log import KafkaLog, Opening
from tests.local_job import read_offsets
from tests.oracle.random_logs import START_MS, Flavour, random_log

pytestmark = pytest.mark.kafka

ROUNDS = 5
HOUR_MS = 3_600_000
CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "internal.segment.bytes": "3000",
    "segment.index.bytes": "10485760",
    "index.interval.bytes": "200",
    "delete.retention.ms": str(HOUR_MS),
}
#: the flavours of the logs, and their settings
LOGS: Mapping[str, tuple[Flavour, Mapping[str, str]]] = {
    "plain": (Flavour(transactions=False, keys=40, batches=90), {}),
    "few-keys": (Flavour(batches=60, keys=2), {}),
    "transactions": (Flavour(batches=120, settled=0.6), {}),
    "compressed": (Flavour(batches=90, codecs=(0, 1, 2, 3, 4)), {}),
    "message-sets": (Flavour(batches=60, magics=(0, 1, 2), settled=0.5), {}),
    "odd": (Flavour(batches=90, odd=0.4, settled=0.6), {}),
    "ratio": (Flavour(batches=120, keys=30), {"min.cleanable.dirty.ratio": "0.5"}),
    "lag": (Flavour(batches=120, keys=30), {"min.compaction.lag.ms": str(2 * HOUR_MS)}),
    "at-once": (Flavour(batches=90, keys=5), {"delete.retention.ms": "0"}),
}


class Rounds:
    """The logs of a seed: a source that is only appended to, its copies, and the logs that Kafka cleans."""

    def __init__(self, gateway: Gateway, root: Path, seed: int) -> None:
        self.gateway, self.root = gateway, root
        self.source, self.kafkas = root / "source", root / "kafkas"
        self.logs = {name: random_log(seed, flavour) for name, (flavour, _) in LOGS.items()}
        self.config = {name: {**CONFIG, **settings} for name, (_, settings) in LOGS.items()}
        self.checkpoints: dict[str, int] = {}
        self.copy: Path | None = None
        self.source.mkdir()
        (self.source / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}', encoding="utf-8")
        self.toml = topics_file(root / "topics.toml", self.config)

    def append(self, name: str, number: int) -> None:
        """The next share of a log, which begins within the active segment."""
        segments = self.logs[name].segments
        batches = [(segment.base_offset, segment.mtime_ms, batch.raw) for segment in segments for batch in segment.batches]
        new = batches[number * len(batches) // ROUNDS : (number + 1) * len(batches) // ROUNDS]
        for log_dir in (self.source, self.kafkas):
            path = log_dir / f"{name}-0"
            before = {file: file.stat().st_mtime_ns for file in path.glob("*.log")}
            with KafkaLog(self.gateway, path, Opening(START_MS, self.config[name])) as log:
                last = max((int(file.stem) for file in before), default=0)
                for base, _, raw in new:
                    if base > last:
                        log.roll()
                        last = base
                    log.append(raw)
            times = {base: mtime_ms for base, mtime_ms, _ in batches}
            for file in path.glob("*.log"):
                if file.stat().st_mtime_ns != before.get(file):
                    mtime_ms = max(time for base, time in times.items() if base <= int(file.stem) or not before)
                    os.utime(file, ns=(mtime_ms * 1_000_000,) * 2)

    def run(self, number: int) -> list[str]:
        """A round: the differences of the next copy from Kafka's logs, and what the certifier finds in it."""
        now_ms = START_MS + HOUR_MS * (number + 1)
        target, version = self.root / f"copy-{number}", self.gateway.version
        since = () if self.copy is None else ("--since", str(self.copy))
        options = ("--config", str(self.toml), "--kafka-version", version, "--output-dir", str(target), "--if-done", "skip")
        reports = clean_in_process(self.source, now_ms, *options, *since)
        found = [f"{name}: {report['reason']}" for name, report in reports.items() if report["status"] == "failed"]
        if number:
            found += [f"{name}: {log['since_reason']}" for name, log in reports.items() if log["since"] != "grown"]
        for name, config in self.config.items():
            path = self.kafkas / f"{name}-0"
            outcome = clean_partition_if_due(self.gateway, path, Opening(now_ms, config), self.checkpoints.get(name))
            if isinstance(outcome, CleanResult):
                self.checkpoints[name] = outcome.end_offset
            found += differences(self.gateway, target / f"{name}-0", path, int(config["index.interval.bytes"]))
        if read_offsets(target, "cleaner_offsets") != self.checkpoints:
            found.append(f"checkpoints {read_offsets(target, 'cleaner_offsets')}, Kafka's {self.checkpoints}")
        if self.copy is not None:
            shutil.rmtree(self.copy)
        self.copy = target
        return [*found, *self.violations(now_ms)]

    def violations(self, now_ms: int) -> list[str]:
        resolver = Resolver(tomls=(read_toml(self.toml.read_text(encoding="utf-8"), str(self.toml)),))
        request = VerifyRequest(
            (str(self.source),), (str(self.copy),), now_ms, exact=True, several_rounds=True,
            resolver=resolver, kafka_version=self.gateway.version,
        )  # fmt: skip
        return [str(log.lines()) for log in certify(request).logs if log.status is not Status.HOLDS]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_each_copy_equals_the_log_after_kafkas_rounds(gateway: Gateway, tmp_path: Path, seed: int) -> None:
    rounds = Rounds(gateway, tmp_path, seed)
    for number in range(ROUNDS):
        for name in LOGS:
            rounds.append(name, number)
        assert rounds.run(number) == [], f"round {number}"
    assert len(rounds.checkpoints) == len(LOGS)
