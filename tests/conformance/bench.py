"""The bench: many small logs, one per scenario, cleaned round by round: by the job in one run, by Kafka one by one.

The reference version writes the logs; a judge of any version cleans them.

All scenarios of a bench share the rounds' times. A round first appends the scenario's next segments to both copies, through
Kafka itself, then cleans both.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.conformance.compare import differences, state_differences
from tests.conformance.ours import clean_in_process, expire_ours, topics_file
from tests.kafka.cleaner import CleanResult, clean_partition_if_due
from tests.kafka.gateway import Gateway, shared_gateway
from tests.kafka.log import KafkaLog, Opening, expire_partition
from tests.scenarios.answers import Outcome, answer_of
from tests.scenarios.language import MTIME, ROUNDS, Scenario

#: as high as that of any batch: a follower ignores batches of a later epoch than its leader's
_NEWEST_EPOCH = 9


@dataclass(frozen=True)
class Round:
    """The outcome of one round of one scenario: the job's report entry, Kafka's outcome, the differences between the
    directories, and what Kafka leaves."""

    ours: Mapping[str, Any]
    kafkas: CleanResult | None
    differences: Sequence[str]
    answer: Sequence[str]

    def problems(self) -> list[str]:
        """Every difference: files, end offset, figures."""
        if self.ours["status"] == "failed":
            return [f"we failed: {self.ours['reason']}"]
        deleted = re.match(r"deleted (\d+),", self.answer[0])
        if self.ours["expired_segments"] != (int(deleted[1]) if deleted else 0):
            return [f"we deleted {self.ours['expired_segments']} segments, Kafka: {self.answer[0]}", *self.differences]
        if self.kafkas is None:
            if deleted:
                return list(self.differences)
            cleaned = [] if self.ours["status"] == "skipped" else [f"we cleaned, Kafka would not: {self.ours['reason']}"]
            return [*cleaned, *self.differences]
        if self.ours["status"] == "skipped":
            return [f"we skipped: {self.ours['reason']}", *self.differences]
        stats, selected = self.kafkas.stats, self.kafkas.selected
        theirs = {
            "first_dirty_offset": selected.first_dirty_offset,
            "end_offset": self.kafkas.end_offset,
            "records_before": stats.messages_read,
            "records_after": stats.messages_written,
            "bytes_before": stats.bytes_read,
            "invalid_records": stats.invalid_messages_read,
        }
        figures = [f"{name} {self.ours[name]}, Kafka's {value}" for name, value in theirs.items() if self.ours[name] != value]
        return [*figures, *self.differences]


class Bench:
    """Scenarios by name (a topic name), laid out twice under ``root``: ``ours`` and ``kafkas`` are log directories. ``gateway``
    is the judge."""

    def __init__(self, gateway: Gateway, root: Path, scenarios: Mapping[str, Scenario]) -> None:
        self._gateway, self._writer = gateway, shared_gateway()
        self._scenarios = scenarios
        # one run has all logs
        (self._expires,) = {scenario.expires for scenario in scenarios.values()}
        self.ours, self.kafkas = root / "ours", root / "kafkas"
        self._checkpoints = {name: scenario.checkpoint for name, scenario in scenarios.items()}
        self._starts = {name: scenario.log_start_offset for name, scenario in scenarios.items()}
        self._deleted = dict.fromkeys(scenarios, 0)
        self._ends: dict[str, int] = {}
        self._config = topics_file(root / "topics.toml", {name: one.topic_config for name, one in scenarios.items()})
        self.ours.mkdir()
        self.kafkas.mkdir()

    def run(self) -> dict[tuple[str, int], Round]:
        """Every round of every scenario, by name and number of the round."""
        found: dict[tuple[str, int], Round] = {}
        for number, now_ms in enumerate(ROUNDS):
            names = [name for name, scenario in self._scenarios.items() if number < len(scenario.rounds)]
            for name in names:
                self._append(name, number)
            if number == 0:
                self._write_checkpoints()
            options = ("--config", str(self._config), "--kafka-version", self._gateway.version)
            if self._expires:
                reports = expire_ours(self.ours, now_ms, *options[:2])
            else:
                reports = clean_in_process(self.ours, now_ms, *options)
            for name in names:
                kafkas = self._clean_with_kafka(name, now_ms)
                outcome = Outcome(None if kafkas is None else kafkas.end_offset, self._deleted[name])
                interval = int(self._scenarios[name].config.get("index.interval.bytes", "4096"))
                differ = differences(self._gateway, self.ours / f"{name}-0", self.kafkas / f"{name}-0", interval)
                if self._scenarios[name].deletes:
                    differ += state_differences(self.ours / f"{name}-0", self.kafkas / f"{name}-0")
                found[name, number] = Round(
                    reports[f"{name}-0"], kafkas, differ,
                    answer_of(self.kafkas / f"{name}-0", outcome, self._starts[name]),
                )  # fmt: skip
        return found

    def _append(self, name: str, number: int) -> None:
        scenario = self._scenarios[name]
        if number and not scenario.rounds[number]:
            return
        first = self.kafkas / f"{name}-0"
        for path in (first,) if number == 0 else (first, self.ours / first.name):
            with KafkaLog(self._writer, path, Opening(ROUNDS[number], scenario.topic_config)) as log:
                if number:
                    log.roll()
                log.write(scenario.rounds[number], leader_epoch=_NEWEST_EPOCH)
                self._ends[name] = log.end_offset
            for file in path.glob("*.log"):
                mtime_ms = scenario.mtimes.get(int(file.stem), MTIME)
                os.utime(file, ns=(mtime_ms * 10**6,) * 2)
        if number == 0:
            shutil.copytree(first, self.ours / first.name)
            if scenario.damage is not None:
                scenario.damage(self.ours / first.name)
                if scenario.damages_kafkas:
                    scenario.damage(first)

    def _clean_with_kafka(self, name: str, now_ms: int) -> CleanResult | None:
        path = self.kafkas / f"{name}-0"
        one = self._scenarios[name]
        opening = Opening(now_ms, one.topic_config, self._starts[name], one.high_watermark)
        if one.deletes:
            expired = expire_partition(self._gateway, path, opening)
            self._starts[name], self._deleted[name] = expired.log_start_offset, expired.segments_deleted
            opening = replace(opening, log_start_offset=self._starts[name])
        if one.expires:
            return None
        outcome = clean_partition_if_due(self._gateway, path, opening, self._checkpoints[name])
        if not isinstance(outcome, CleanResult):
            return None
        self._checkpoints[name] = outcome.end_offset
        return outcome

    def _write_checkpoints(self) -> None:
        marks = {name: one.high_watermark for name, one in self._scenarios.items()}
        starts = {name: one.log_start_offset or None for name, one in self._scenarios.items()}
        known = {name: self._ends[name] if mark is None else mark for name, mark in marks.items()}
        self._write("replication-offset-checkpoint", {name: mark for name, mark in known.items() if marks[name] is not None})
        self._write("log-start-offset-checkpoint", starts)
        self._write("cleaner-offset-checkpoint", self._checkpoints)
        (self.ours / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}', encoding="utf-8")

    def _write(self, file: str, offsets: Mapping[str, int | None]) -> None:
        lines = [f"{name} 0 {offset}" for name, offset in offsets.items() if offset is not None]
        (self.ours / file).write_text("\n".join(["0", str(len(lines)), *lines, ""]), encoding="utf-8")
