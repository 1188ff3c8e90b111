"""A real broker with two log directories: the metadata log of the first one has the policies of the second one's logs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compaction.commands import compact
from compaction.run.compact import clean_logs
from tests.conformance.ours import expire_ours, run_job
from tests.executed import executed
from tests.kafka.broker import Broker
from tests.kafka.clients import Clients
from tests.kafka.gateway import Gateway
from tests.local_passes import LocalPasses

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

START_MS, HOUR_MS = 1_760_000_000_000, 3_600_000
#: by then everything has expired, also by Kafka's default
NOW_MS = START_MS + 300 * HOUR_MS
COMPACTED = tuple(f"compacted-{number}" for number in range(4))
DELETED = tuple(f"deleted-{number}" for number in range(4))
KEYS, HOURS = 10, 6


@dataclass(frozen=True)
class Directories:
    """A stopped broker's log directories; the first has the metadata log."""

    first: Path
    second: Path

    @property
    def overrides(self) -> dict[str, str]:
        return {"log.dirs": f"{self.first},{self.second}", "metadata.log.dir": str(self.first)}

    def logs(self, topics: tuple[str, ...]) -> set[str]:
        """The logs of these topics in the second directory."""
        return {f"{topic}-0" for topic in topics if (self.second / f"{topic}-0").is_dir()}


@pytest.fixture(scope="module")
def written(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Directories:
    root = tmp_path_factory.mktemp("jbod")
    made = Directories(root / "first", root / "second")
    made.second.mkdir()
    with Broker(made.first, made.overrides) as broker:
        clients = Clients(gateway, broker.bootstrap)
        for topic in (*COMPACTED, *DELETED):
            policy = "compact" if topic in COMPACTED else "delete"
            clients.create_topic(topic, 1, {"cleanup.policy": policy, "segment.ms": str(HOUR_MS)})
        with clients.producer(linger_ms="100") as producer:
            for hour in range(HOURS):
                for topic in (*COMPACTED, *DELETED):
                    for key in range(KEYS):
                        value, stamp = b"value-%d" % hour, START_MS + hour * (HOUR_MS + 1)
                        producer.send(topic, b"key-%d" % key, value, timestamp=stamp)
                producer.flush()
    assert made.logs(COMPACTED)
    assert made.logs(DELETED)
    return made


@pytest.fixture
def directories(written: Directories, tmp_path: Path) -> Iterator[Directories]:
    copy = Directories(tmp_path / "first", tmp_path / "second")
    shutil.copytree(written.first, copy.first)
    shutil.copytree(written.second, copy.second)
    yield copy


def segments(log_dir: Path) -> dict[str, int]:
    files = [file for file in log_dir.rglob("*.log") if file.parent.name != "__cluster_metadata-0"]
    return {str(file.relative_to(log_dir)): file.stat().st_size for file in files}


def expired(reports: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, log in reports.items() if log["expired_segments"]}


def test_the_second_directory_alone_is_not_changed(directories: Directories) -> None:
    before = segments(directories.second)
    reports = expire_ours(directories.second, NOW_MS)
    assert {log["status"] for log in reports.values()} == {"failed"}
    assert all(log["policy_unknown"] for log in reports.values())
    assert segments(directories.second) == before


def test_with_the_first_directory_each_log_has_its_policy_and_the_broker_serves_the_result(
    directories: Directories, gateway: Gateway
) -> None:
    reports = expire_ours(directories.second, NOW_MS, "--metadata", str(directories.first))
    assert expired(reports) == directories.logs(DELETED)
    assert {name for name, log in reports.items() if log["status"] == "skipped"} == directories.logs(COMPACTED)
    reports = expire_ours(directories.first, NOW_MS, "--log-dir", str(directories.second))
    assert expired(reports) == {f"{topic}-0" for topic in DELETED} - directories.logs(DELETED)

    def run(argv: list[str]) -> int:
        return executed(compact, argv, lambda _, request: clean_logs(LocalPasses, request))

    ratio = ("--set", "min.cleanable.dirty.ratio=0")
    reports = run_job(run, directories.second, NOW_MS, "--log-dir", str(directories.first), *ratio)
    assert {name for name, log in reports.items() if log["status"] == "cleaned"} == {f"{topic}-0" for topic in COMPACTED}
    with Broker(directories.first, directories.overrides) as broker:
        clients = Clients(gateway, broker.bootstrap)
        for topic in COMPACTED:
            left = {record.key: record.value for record in clients.read_all(topic)}
            assert left == {b"key-%d" % key: b"value-%d" % (HOURS - 1) for key in range(KEYS)}, topic
        for topic in DELETED:
            assert clients.read_all(topic) == [], topic
        assert broker.errors() == []
