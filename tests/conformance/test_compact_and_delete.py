"""``compact,delete``: expired segments are deleted, then the rest is compacted, as by Kafka's deletion and then its cleaner."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from compaction.report import LogReport, LogStatus
from tests.conformance.compare import differences
from tests.kafka.cleaner import CleanResult, Selected, clean_partition_if_due
from tests.kafka.encode import Producer
from tests.kafka.gateway import Gateway
from tests.kafka.log import Expired, KafkaLog, Opening, expire_partition
from tests.local_job import clean_locally, read_offsets, write_offsets
from tests.scenarios.writer import Writer

pytestmark = pytest.mark.kafka

T = 1_700_000_000_000
HOUR, DAY = 3_600_000, 86_400_000
NOW = T + 30 * DAY


@dataclass(frozen=True)
class Both:
    """One log: its segments, its settings, and the entries of the checkpoint files."""

    segments: Sequence[Sequence[bytes]]
    config: Mapping[str, str] = field(default_factory=dict)
    log_start_offset: int = 0
    checkpoint: int | None = None

    @property
    def topic_config(self) -> dict[str, str]:
        return {"cleanup.policy": "compact,delete", "retention.ms": "-1", "min.cleanable.dirty.ratio": "0", **self.config}


@dataclass(frozen=True)
class Outcome:
    ours: Path
    kafkas: Path
    dry_run: LogReport
    report: LogReport
    log_start_offset: int
    expired: Expired
    cleaned: CleanResult | Selected


def day(writer: Writer, keys: str, days_ago: int) -> list[bytes]:
    """A segment with one batch per key, so many days old; its offsets continue the writer's."""
    aged = Writer(writer.offset, time_ms=NOW - days_ago * DAY - 100_000_000 - writer.offset * 1000)
    made = aged.each(keys)
    writer.offset = aged.offset
    return made


def week(keys: Sequence[str] = ("abc", "bcd", "Aef", "abg", "efh")) -> list[list[bytes]]:
    """Segments of five, four, ... days ago, and an active one."""
    writer = Writer()
    return [day(writer, each, len(keys) - number) for number, each in enumerate(keys)] + [day(writer, "zz", 0)]


def transactions() -> list[list[bytes]]:
    """An aborted transaction whose data expires but not its marker, and a producer that occurs only in expired segments."""
    writer = Writer(time_ms=NOW - 9 * DAY)
    one, two = Producer(7), Producer(8)
    return [
        [writer.sent(one, "ab"), writer.sent(two, "xy", transactional=False)],
        [writer.sent(one, "bc"), writer.batch("ab")],
        [writer.abort(one), writer.batch("bd")],
        [writer.sent(one, "cd"), writer.commit(one), writer.batch("q")],
        [],
    ]


def size_of(segments: Sequence[Sequence[bytes]]) -> int:
    return sum(len(batch) for segment in segments for batch in segment)


SCENARIOS = {
    "some-expire": Both(week(), {"retention.ms": str(4 * DAY)}),
    "none-expire": Both(week(), {"retention.ms": str(40 * DAY)}),
    "all-expire": Both(week()[:5], {"retention.ms": "1"}),
    "all-but-active-expire": Both(week(), {"retention.bytes": str(size_of(week()[5:]))}),
    "log-start-inside": Both(week(), {"retention.ms": str(40 * DAY)}, log_start_offset=4),
    "checkpoint-in-what-expires": Both(week(), {"retention.ms": str(4 * DAY)}, checkpoint=3),
    "checkpoint-in-what-stays": Both(week(), {"retention.ms": str(4 * DAY)}, checkpoint=9),
    "expires-but-too-little-dirty": Both(
        week(), {"retention.ms": str(4 * DAY), "min.cleanable.dirty.ratio": "0.9"}, checkpoint=12
    ),
    "expires-but-too-young": Both(
        week(), {"retention.ms": str(4 * DAY), "min.compaction.lag.ms": str(20 * DAY), "max.compaction.lag.ms": str(30 * DAY)}
    ),
    "transactions": Both(transactions(), {"retention.bytes": str(size_of(transactions()[2:]))}),
    "transactions-all-but-one": Both(transactions(), {"retention.bytes": str(size_of(transactions()[3:]))}),
}


@pytest.fixture(scope="module")
def outcomes(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    root = tmp_path_factory.mktemp("both")
    ours, kafkas = root / "ours", root / "kafkas"
    ours.mkdir()
    for name, scenario in SCENARIOS.items():
        with KafkaLog(gateway, kafkas / f"{name}-0", Opening(NOW)) as log:
            log.write(scenario.segments)
        for file in (kafkas / f"{name}-0").glob("*.log"):
            os.utime(file, ns=((NOW - DAY) * 10**6,) * 2)
        shutil.copytree(kafkas / f"{name}-0", ours / f"{name}-0")
    write_offsets(
        ours,
        log_starts={name: scenario.log_start_offset for name, scenario in SCENARIOS.items()},
        cleaner_offsets={name: scenario.checkpoint for name, scenario in SCENARIOS.items()},
    )
    configs = {name: scenario.topic_config for name, scenario in SCENARIOS.items()}
    before = tree(ours)
    dry = clean_locally(ours, NOW, configs, dry_run=True)
    assert tree(ours) == before
    real = clean_locally(ours, NOW, configs)
    starts = read_offsets(ours, "log_starts")
    made = {}
    for name, scenario in SCENARIOS.items():
        path = kafkas / f"{name}-0"
        opening = Opening(NOW, scenario.topic_config, scenario.log_start_offset)
        expired = expire_partition(gateway, path, opening)
        opening = replace(opening, log_start_offset=expired.log_start_offset)
        cleaned = clean_partition_if_due(gateway, path, opening, scenario.checkpoint)
        made[name] = Outcome(ours / path.name, path, dry[name], real[name], starts.get(name, 0), expired, cleaned)
    return made


def tree(path: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime_ns) for file in path.rglob("*") if file.is_file()
    }


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "all-expire"])
def test_the_log_equals_kafkas(gateway: Gateway, outcomes: dict[str, Outcome], name: str) -> None:
    found = outcomes[name]
    start = SCENARIOS[name].log_start_offset
    # a broker that loads a log removes the snapshots up to its start
    for side in (found.ours, found.kafkas):
        for snapshot in side.glob("*.snapshot"):
            if int(snapshot.stem) <= start:
                snapshot.unlink()
    assert differences(gateway, found.ours, found.kafkas) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_figures_equal_kafkas(outcomes: dict[str, Outcome], name: str) -> None:
    found = outcomes[name]
    assert (found.report.expired_segments, found.log_start_offset) == (
        found.expired.segments_deleted,
        found.expired.log_start_offset,
    )
    if isinstance(found.cleaned, Selected):
        assert found.report.status is LogStatus.SKIPPED
        return
    stats = found.cleaned.stats
    assert (found.report.records_before, found.report.records_after, found.report.end_offset) == (
        stats.messages_read,
        stats.messages_written,
        found.cleaned.end_offset,
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_dry_run_gives_the_same_figures(outcomes: dict[str, Outcome], name: str) -> None:
    found = outcomes[name]
    assert replace(found.dry_run, seconds=0) == replace(found.report, seconds=0)


def test_both_halves_of_the_policy_have_an_effect(outcomes: dict[str, Outcome]) -> None:
    both = [found.report for found in outcomes.values() if found.report.expired_segments]
    assert len(both) >= 7
    assert sum(report.records_after < report.records_before for report in both) >= 2
    assert outcomes["all-expire"].report.reason.endswith("empty: the log has no bytes")
