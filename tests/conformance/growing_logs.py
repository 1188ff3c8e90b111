"""Logs that a broker appends to, copied with ``--since`` again and again, and as many rounds of Kafka's own cleaner on logs
with the same appends. If previous copies are damaged, a log that is copied in full is compared with one round on its source.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from compaction import compact
from compaction.certifier.certificate import Status
from compaction.output.finished import FINISHED
from compaction.report import LogStatus, Since
from tests.certifier.certify import certify_copy
from tests.conformance.kafkas import checkpoints, clean_as_broker, different_logs
from tests.damage.copied_files import DAMAGES, damage
from tests.kafka.gateway import Gateway
from tests.kafka.log import KafkaLog, Opening
from tests.local_job import topics_file, write_offsets
from tests.oracle.random_logs import START_MS, Flavour, random_log
from tests.scenarios.draw import drawn_flavour

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
#: logs by name: their flavours, and their settings
Logs = Mapping[str, tuple[Flavour, Mapping[str, str]]]


def random_logs(seed: int) -> Logs:
    """Nine logs of random flavours and settings, uncompressed: the sizes of segments decide what later rounds join."""
    rng = random.Random(f"copies {seed}")
    flavours = (replace(drawn_flavour(9 * seed + number), codecs=(0,), spoiled=0.0) for number in range(9))
    return {f"random-{number}": (flavour, _settings(rng)) for number, flavour in enumerate(flavours)}


def _settings(rng: random.Random) -> Mapping[str, str]:
    settings = {
        # the job takes an index for truncated that lacks more than a broker leaves out when it is started once
        "index.interval.bytes": "4096",
        "internal.segment.bytes": rng.choice(("1500", "3000", "6000", "1048576")),
        "delete.retention.ms": str(rng.choice((0, HOUR_MS - 1, HOUR_MS, 2 * HOUR_MS, 10 * HOUR_MS))),
    }
    if rng.random() < 0.3:
        settings["min.cleanable.dirty.ratio"] = rng.choice(("0.2", "0.5", "0.8"))
    if rng.random() < 0.2:
        settings["min.compaction.lag.ms"] = str(rng.choice((1, HOUR_MS, 2 * HOUR_MS)))
    return settings


class GrowingLogs:
    """Logs of a seed under ``root``: a source that is only appended to, its copies, and the logs that Kafka cleans.

    :param damaging: damages one file of each previous copy, at random; the source may have no clean shutdown
    """

    def __init__(self, gateway: Gateway, root: Path, seed: int, logs: Logs, *, damaging: bool = False) -> None:
        self.gateway, self.root = gateway, root
        self.rng = random.Random(f"damage {seed}") if damaging else None
        self.source, self.kafkas = root / "source", root / "kafkas"
        self.logs = {name: random_log(seed, flavour) for name, (flavour, _) in logs.items()}
        self.config = {name: {**CONFIG, **settings} for name, (_, settings) in logs.items()}
        self.copy: Path | None = None
        self.source.mkdir()
        if self.rng is None or self.rng.random() < 0.5:
            (self.source / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}', encoding="utf-8")
        self.toml = topics_file(root / "topics.toml", self.config)

    def problems(self) -> list[str]:
        """All rounds, up to the first with a problem: differences of a copy from Kafka's logs, and what the certifier finds."""
        for number in range(ROUNDS):
            for name in self.logs:
                self._append(name, number)
            if found := self._round(number):
                return [f"round {number}: {each}" for each in found]
        return []

    def _append(self, name: str, number: int) -> None:
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

    def _round(self, number: int) -> list[str]:
        now_ms = START_MS + HOUR_MS * (number + 1)
        target, version = self.root / f"copy-{number}", self.gateway.version
        damaged = "" if self.copy is None or self.rng is None else _damage_one(self.copy, self.rng)
        report = compact(
            self.source,
            as_of=now_ms,
            config=self.toml,
            kafka_version=version,
            allow_keyless=True,
            output_dir=target,
            if_done="skip",
            since=self.copy,
            engine="local",
        )
        found = [f"{log.name}: {log.reason}" for log in report.logs if log.status is LogStatus.FAILED]
        full = {log.name: log.since_reason for log in report.logs if number and log.since == Since.FULL}
        found += [f"{name}: {reason}, {damaged}" for name, reason in full.items() if not damaged or damaged not in reason]
        for name in full:
            shutil.rmtree(self.kafkas / name)
            shutil.copytree(self.source / name, self.kafkas / name)
        known = checkpoints(self.kafkas, "cleaner_offsets")
        write_offsets(self.kafkas, cleaner_offsets={name.removesuffix("-0"): known[name] for name in known.keys() - full})
        for name, config in self.config.items():
            clean_as_broker(self.gateway, self.kafkas, f"{name}-0", config, now_ms)
            found += different_logs(self.gateway, target, self.kafkas, f"{name}-0", int(config["index.interval.bytes"]))
        if self.copy is not None:
            shutil.rmtree(self.copy)
        self.copy = target
        certified = certify_copy(self.source, target, now_ms, self.config, several_rounds=True, kafka_version=version)
        return [*found, *(str(log.lines()) for log in certified.logs if log.status is not Status.HOLDS)]


def _damage_one(copy: Path, rng: random.Random) -> str:
    """The name of a file of a copy that was damaged; empty if none was."""
    path = rng.choice([path for path in sorted(copy.rglob("*")) if path.is_file() and path.name != FINISHED])
    return path.name if damage(path, rng.choice(sorted(DAMAGES))) else ""
