"""Real brokers of several versions write logs, and load what the job left of them by the rules of their version.

What their consumers then read is what they read after the cleaner of that version.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from compaction.report import LogStatus
from compaction.rules.kafka_rules import NEWEST
from tests.conformance.compare import differences
from tests.kafka.broker import Broker
from tests.kafka.cleaner import CleanResult, clean_partition_if_due
from tests.kafka.clients import Clients, Consumed
from tests.kafka.gateway import Gateway
from tests.kafka.jars import REFERENCE
from tests.kafka.log import Opening
from tests.local_job import clean_locally
from tests.log.settings.guesses import known, settings_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

#: the last with ZooKeeper, the first without, the first that converts old batches; other tests have the newest
VERSIONS = ("2.8.2", "3.3.2", "4.0.2")
T = 1_700_000_000_000
HOUR_MS = 3_600_000
SEGMENT_BYTES = "2500"
#: what all versions name alike
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": str(HOUR_MS)}
#: later than any record and file, with active producers: a tombstone's hour has not passed
SOON_MS, LATER_MS = 60_000, 2 * HOUR_MS


def topics_of(release: tuple[int, ...]) -> dict[str, dict[str, str]]:
    """The topics of a version, with their settings: before 3.0 one of them has messages of magic 1."""
    config = {**COMPACT, "internal.segment.bytes" if release >= (4, 1) else "segment.bytes": SEGMENT_BYTES}
    old = {"old": {**config, "message.format.version": "0.10.2"}} if release < (3,) else {}
    return {"plain": config, "txn": config, **old}


def write(clients: Clients, topics: Mapping[str, Mapping[str, str]]) -> None:
    """Superseded records, tombstones, all codecs, and transactions of which every third is aborted."""
    for topic, config in topics.items():
        clients.create_topic(topic, 1, config)
    for topic in topics:
        if topic == "txn":
            continue
        for round_, codec in enumerate(("none", "gzip", "snappy", "lz4", "none")):
            idempotent = {"enable_idempotence": "false"} if topic == "old" else {}
            with clients.producer(compression_type=codec, linger_ms="50", **idempotent) as producer:
                sent = []
                for at in range(40):
                    value = None if at % 7 == round_ else b"%d" % round_ * 20
                    key, time_ms = b"k%d" % (at % (20 - 2 * round_)), T + round_ * HOUR_MS + at
                    sent.append(producer.send(topic, key, value, timestamp=time_ms))
                producer.flush()
                for each in sent:
                    each.get()
    with clients.producer(transactional_id="x") as producer:
        producer.java.initTransactions()
        for round_ in range(12):
            with producer.transaction(commit=round_ % 3 != 1):
                for at in range(6):
                    producer.send("txn", b"k%d" % at, b"%d" % round_ * 30)


def served(clients: Clients, topics: Sequence[str]) -> list[list[Consumed]]:
    """What consumers read, without and with transactions in mind, to the end of each topic."""
    # a broker with a ZooKeeper is up before it knows its topics
    wait_until(lambda: all(clients.end_offsets(topic) for topic in topics))
    return [clients.read_all(topic, committed_only=committed) for topic in topics for committed in (False, True)]


def copied(log_dir: Path, name: str) -> Path:
    """A copy of a broker's directory, and of its ZooKeeper's."""
    for suffix in ("", "-zookeeper"):
        source = log_dir.with_name(log_dir.name + suffix)
        if source.exists():
            shutil.copytree(source, log_dir.with_name(name + suffix))
    return log_dir.with_name(name)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_of_the_version_serves_what_its_own_cleaner_would_have_left(
    gateway: Gateway, tmp_path: Path, version: str
) -> None:
    with closing(Gateway(version=version)) as judge:
        topics = topics_of(judge.release)
        kafkas = tmp_path / "kafkas"
        with Broker(kafkas, version=version) as broker:
            write(Clients(gateway, broker.bootstrap), topics)
        # a broker with a ZooKeeper has no metadata log
        expected = NEWEST if judge.release < (3, 3) else version.rpartition(".")[0]
        assert {known(each).kafka.version for each in settings_of(kafkas).values()} == {expected}
        ours = copied(kafkas, "ours")
        newest_ms = max(file.stat().st_mtime_ns for file in kafkas.rglob("*.log")) // 10**6
        ends: dict[str, int] = {}
        for now_ms in (newest_ms + SOON_MS, newest_ms + LATER_MS):
            config = {**COMPACT, "internal.segment.bytes": SEGMENT_BYTES}
            clean_locally(ours, now_ms, dict.fromkeys(topics, config), kafka_version=version)
            for topic, config in topics.items():
                opening = Opening(now_ms, config, clean_shutdown=True)
                outcome = clean_partition_if_due(judge, kafkas / f"{topic}-0", opening, ends.get(topic))
                if isinstance(outcome, CleanResult):
                    ends[topic] = outcome.end_offset
                assert differences(judge, ours / f"{topic}-0", kafkas / f"{topic}-0") == []
        assert set(ends) == set(topics), "all were cleaned"

    def read(log_dir: Path) -> list[list[Consumed]]:
        with Broker(log_dir, version=version) as broker:
            found = served(Clients(gateway, broker.bootstrap), list(topics))
            assert not broker.errors()
            assert "corrupt" not in broker.log_text().lower()
            return found

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(read, (ours, kafkas)))
    assert found[0] == found[1]
    assert all(records for records in found[0])


def test_the_oldest_broker_serves_what_the_newest_rules_left(gateway: Gateway, tmp_path: Path) -> None:
    version, log_dir, topics = VERSIONS[0], tmp_path / "logs", topics_of((2, 8, 2))
    with Broker(log_dir, version=version) as broker:
        clients = Clients(gateway, broker.bootstrap)
        write(clients, topics)
        before = {topic: clients.read_all(topic, committed_only=True) for topic in topics}
    now_ms = max(file.stat().st_mtime_ns for file in log_dir.rglob("*.log")) // 10**6 + SOON_MS
    config = {**COMPACT, "internal.segment.bytes": SEGMENT_BYTES}
    reports = clean_locally(log_dir, now_ms, dict.fromkeys(topics, config), kafka_version=REFERENCE)
    assert {reports[topic].status for topic in topics} == {LogStatus.CLEANED}
    with Broker(log_dir, version=version) as broker:
        clients = Clients(gateway, broker.bootstrap)
        served(clients, list(topics))
        for topic in topics:
            found = clients.read_all(topic, committed_only=True)
            assert set(found) < set(before[topic]), topic
            assert {each.key: each for each in found} == {each.key: each for each in before[topic]}, topic
        assert not broker.errors()
