"""The delete policy has the same result for every log as Kafka's own ``UnifiedLog.deleteOldSegments`` at the same time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compaction.formats.producer_snapshot import read_snapshot
from compaction.names import LEADER_EPOCHS
from tests.conformance.expiry_scenarios import DAY, NOW, Expiry, expiry_scenarios
from tests.conformance.ours import expire_ours, topics_file
from tests.golden import unpack_sample
from tests.kafka.broker import Broker
from tests.kafka.clients import Clients
from tests.kafka.gateway import Gateway
from tests.kafka.log import Expired, KafkaLog, Opening, expire_partition
from tests.local_job import read_offsets, write_offsets

pytestmark = pytest.mark.kafka

SCENARIOS = expiry_scenarios()
_KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
#: as high as that of any batch: a follower ignores batches of a later epoch than its leader's
NEWEST_EPOCH = 9
_INDEXES = (".index", ".timeindex")


@dataclass(frozen=True)
class Outcome:
    """Both sides of one scenario."""

    ours: Path
    kafkas: Path
    report: Mapping[str, Any]
    expired: Expired
    log_start_offset: int


@pytest.fixture(scope="module")
def outcomes(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    root = tmp_path_factory.mktemp("expiry")
    ours, kafkas = root / "ours", root / "kafkas"
    ours.mkdir()
    for name, scenario in SCENARIOS.items():
        write_log(gateway, kafkas / f"{name}-0", scenario)
        shutil.copytree(kafkas / f"{name}-0", ours / f"{name}-0")
    write_offsets(
        ours,
        log_starts={name: scenario.log_start_offset for name, scenario in SCENARIOS.items()},
        high_watermarks={name: scenario.high_watermark for name, scenario in SCENARIOS.items()},
    )
    config = topics_file(root / "topics.toml", {name: one.topic_config for name, one in SCENARIOS.items()})
    reports = expire_ours(ours, NOW, "--config", str(config))
    starts = read_offsets(ours, "log_starts")
    return {
        name: Outcome(ours / f"{name}-0", kafkas / f"{name}-0", reports[f"{name}-0"], expired, starts.get(name, 0))
        for name, scenario in SCENARIOS.items()
        for expired in [expire_partition(gateway, kafkas / f"{name}-0", opening(scenario))]
    }


def opening(scenario: Expiry) -> Opening:
    return Opening(NOW, scenario.topic_config, scenario.log_start_offset, scenario.high_watermark)


def write_log(gateway: Gateway, path: Path, scenario: Expiry) -> None:
    with KafkaLog(gateway, path, Opening(NOW)) as log:
        log.write(scenario.segments, leader_epoch=NEWEST_EPOCH)
    for file in path.glob("*.log"):
        os.utime(file, ns=(scenario.mtimes.get(int(file.stem), NOW - 7 * DAY) * 10**6,) * 2)


def files(path: Path, scenario: Expiry) -> dict[str, bytes]:
    """The files of a log that are compared, as bytes.

    Not compared are ``.deleted`` files, empty indexes, which Kafka creates when it first needs them, and snapshots up to the
    log start, which it removes when it loads the log.
    """
    found = [file for file in path.iterdir() if file.suffix in _KINDS or file.name == LEADER_EPOCHS]
    gone = {
        file
        for file in found
        if (file.suffix in _INDEXES and not file.stat().st_size)
        or (file.suffix == ".snapshot" and int(file.stem) <= scenario.log_start_offset)
    }
    return {file.name: file.read_bytes() for file in found if file not in gone}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_remaining_files_equal_kafkas(outcomes: dict[str, Outcome], name: str) -> None:
    found = outcomes[name]
    ours, kafkas = files(found.ours, SCENARIOS[name]), files(found.kafkas, SCENARIOS[name])
    assert sorted(ours) == sorted(kafkas)
    for file, data in ours.items():
        if file.endswith(".snapshot"):
            assert read_snapshot(data) == read_snapshot(kafkas[file]), file
        else:
            assert data == kafkas[file], file


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_log_start_equals_kafkas(outcomes: dict[str, Outcome], name: str) -> None:
    found = outcomes[name]
    assert (found.log_start_offset, found.report["expired_segments"]) == (
        found.expired.log_start_offset,
        found.expired.segments_deleted,
    )
    assert found.report["status"] == ("cleaned" if found.expired.segments_deleted else "skipped")


def test_the_scenarios_remove_nothing_something_and_everything(outcomes: dict[str, Outcome]) -> None:
    removed = {name: found.expired.segments_deleted for name, found in outcomes.items()}
    assert {name for name, count in removed.items() if not count} == {
        "time-no-limit",
        "size-of-everything",
        "size-over-everything",
        "size-no-limit",
        "never-written",
    }
    assert {name for name, count in removed.items() if count == len(SCENARIOS[name].segments)} >= {
        "time-all",
        "size-0",
        "leader-epochs-all-go",
        "producers-all-go",
        "a-single-segment",
    }


@pytest.mark.slow
def test_a_broker_starts_on_the_remaining_segments(gateway: Gateway, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    settings = ("--set", "cleanup.policy=delete", "--set", "retention.bytes=15000", "--topic", "[a-z].*")
    reports = expire_ours(log_dir, NOW, *settings)
    expected = {name: log for name, log in reports.items() if log["expired_segments"]}
    assert len(expected) > 5
    starts = {(name.rpartition("-")[0], log["partition"]): log["end_offset"] for name, log in expected.items()}
    with Broker(log_dir) as broker:
        clients = Clients(gateway, broker.bootstrap)
        for (topic, partition), start in starts.items():
            begin, end = clients.end_offsets(topic)[partition]
            assert begin == start, topic
            read = [record.offset for record in clients.read_all(topic) if record.partition == partition]
            assert min(read, default=end) >= start, topic
