"""Logs of real brokers of several versions are cleaned as by Kafka's cleaner, round after round, and the brokers continue with
them; so are those of killed brokers and of followers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from compaction import expire
from compaction.certifier.certificate import Status
from compaction.names import CLEAN_SHUTDOWN, LEADER_EPOCHS, TopicPartition
from compaction.report import LogStatus
from compaction.rules.kafka_rules import NEWEST
from compaction.run.compact import clean_logs
from tests.certifier.certify import certify_copy
from tests.conformance.compare import differences
from tests.conformance.kafkas import (
    checkpoints,
    clean_as_broker,
    cleaned_by_both,
    forget_active_indexes,
    forget_snapshots,
    soon_after,
)
from tests.golden import unpack_sample
from tests.kafka.broker import Broker
from tests.kafka.clients import Clients, Consumed
from tests.kafka.gateway import Gateway
from tests.kafka.jars import REFERENCE
from tests.local_job import TopicConfigs, clean_locally, request_for, topics_file, write_offsets
from tests.local_passes import LocalPasses
from tests.log.settings.guesses import known, settings_of
from tests.oracle.disk import read_partition
from tests.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

#: the last with ZooKeeper, the first without, the first that converts old batches, the newest
VERSIONS = ("2.8.2", "3.3.2", "4.0.2", REFERENCE)
T = 1_700_000_000_000
HOUR_MS = 3_600_000
SEGMENT_BYTES = "2500"
#: what all versions name alike
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": str(HOUR_MS)}
#: when a log is cleaned after each of the times that producers write: no horizon has passed, some have, all have and producers
#: are expired
LATER_MS = ((0, 2 * HOUR_MS), (2 * HOUR_MS, 200 * HOUR_MS))
#: the high watermark is written every five seconds otherwise: what is above it is not cleaned, also after a kill
MARKED_OFTEN = {"replica.high.watermark.checkpoint.interval.ms": "200"}
NEVER_MARKED = {"replica.high.watermark.checkpoint.interval.ms": "3600000"}
TXN_ENTRY_BYTES = 34


def topics_of(release: tuple[int, ...], segment_bytes: str = "") -> dict[str, dict[str, str]]:
    """The topics of a version, with their settings: before 3.0 one of them has messages of magic 1."""
    config = {**COMPACT, segment_bytes or ("internal.segment.bytes" if release >= (4, 1) else "segment.bytes"): SEGMENT_BYTES}
    old = {"old": {**config, "message.format.version": "0.10.2"}} if release < (3,) else {}
    return {
        "plain": config,
        "txn": config,
        "stamped": {**config, "message.timestamp.type": "LogAppendTime"},
        "both": {**config, "cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "4000"},
        **old,
    }


def write(clients: Clients, topics: Mapping[str, object]) -> None:
    """Superseded records, tombstones, all codecs, and in ``txn`` transactions."""
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
    write_transactions(clients)


def write_transactions(clients: Clients) -> None:
    """Transactions of several producers, one after the other, then some within a longer one; most of them are aborted, and one
    does not end until this is called again."""
    with ExitStack() as stack:
        outer, *inner = (stack.enter_context(clients.producer(transactional_id=name)) for name in ("outer", "a", "b"))
        for producer in (outer, *inner):
            producer.java.initTransactions()
        for number in range(24):
            if number % 8 == 4:
                outer.java.beginTransaction()
                outer.send("txn", b"outer", b"%d" % number * 20)
                outer.flush()
            producer = inner[number // 3 % 2]
            with producer.transaction(commit=number % 3 == 0):
                for at in range(4):
                    producer.send("txn", b"k%d" % at, b"%d" % number * 20)
            if number % 8 == 7:
                outer.end(commit=number % 16 != 7)
        outer.java.beginTransaction()
        outer.send("txn", b"outer", b"not committed")
        outer.flush()
        outer.vanish()


def latest(clients: Clients, topics: Mapping[str, object]) -> dict[str, dict[bytes | None, Consumed]]:
    """The last committed record of each key that has a value."""
    # a broker with a ZooKeeper is up before it knows its topics
    wait_until(lambda: all(clients.end_offsets(topic) for topic in topics))
    found = {topic: {each.key: each for each in clients.read_all(topic, committed_only=True)} for topic in topics}
    return {topic: {key: each for key, each in last.items() if each.value is not None} for topic, last in found.items()}


def copied(log_dir: Path, name: str) -> Path:
    """A copy of a broker's directory, and of its ZooKeeper's."""
    for suffix in ("", "-zookeeper"):
        source = log_dir.with_name(log_dir.name + suffix)
        if source.exists():
            shutil.copytree(source, log_dir.with_name(name + suffix))
    return log_dir.with_name(name)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_continues_with_what_its_own_cleaner_would_have_left(gateway: Gateway, tmp_path: Path, version: str) -> None:
    ours, cleaned, expired = tmp_path / "ours", set[str](), 0
    before: dict[str, dict[bytes | None, Consumed]] = {}
    with closing(Gateway(version=version)) as judge:
        topics = topics_of(judge.release)
        config = topics_file(tmp_path / "topics.toml", topics_of(judge.release, "internal.segment.bytes"))
        for number, later_ms in enumerate(LATER_MS):
            with Broker(ours, version=version) as broker:
                clients = Clients(gateway, broker.bootstrap)
                for topic, settings in topics.items() if not number else ():
                    clients.create_topic(topic, 1, settings)
                if number:
                    found = latest(clients, topics)
                    # some segments of this one are deleted
                    assert found.pop("both").items() <= before.pop("both").items()
                    assert found == before
                write(clients, topics)
                before = latest(clients, topics)
                assert not broker.errors()
            # a broker with a ZooKeeper has no metadata log
            expected = NEWEST if judge.release < (3, 3) else version.rpartition(".")[0]
            assert {known(each).kafka.version for each in settings_of(ours).values()} == {expected}
            kafkas, soon_ms = copied(ours, f"kafkas-{number}"), soon_after(ours)
            for now_ms in (soon_ms + later for later in later_ms):
                both = cleaned_by_both(judge, ours, kafkas, topics, now_ms, config=config, engine="local")
                assert both.problems == []
                cleaned |= {log for log, outcome in both.outcomes.items() if outcome.end_offset is not None}
                expired += both.reports["both-0"].expired_segments
        assert cleaned >= {f"{topic}-0" for topic in topics}
        assert expired

    def read(log_dir: Path) -> list[list[Consumed]]:
        with Broker(log_dir, version=version) as broker:
            clients = Clients(gateway, broker.bootstrap)
            latest(clients, topics)
            found = [clients.read_all(topic, committed_only=committed) for topic in topics for committed in (False, True)]
            assert not broker.errors()
            assert "corrupt" not in broker.log_text().lower()
            return found

    with ThreadPoolExecutor(2) as pool:
        served = list(pool.map(read, (ours, kafkas)))
    assert served[0] == served[1]
    assert all(records for records in served[0])


def test_the_oldest_broker_serves_what_the_newest_rules_left(gateway: Gateway, tmp_path: Path) -> None:
    version, log_dir, topics = VERSIONS[0], tmp_path / "logs", topics_of((2, 8, 2))
    del topics["both"]
    with Broker(log_dir, version=version) as broker:
        clients = Clients(gateway, broker.bootstrap)
        for topic, settings in topics.items():
            clients.create_topic(topic, 1, settings)
        write(clients, topics)
        before = latest(clients, topics)
    config = {topic: topics_of((2, 8, 2), "internal.segment.bytes")[topic] for topic in topics}
    reports = clean_locally(log_dir, soon_after(log_dir), config, kafka_version=REFERENCE)
    assert all(each.status is LogStatus.CLEANED and each.records_after < each.records_before for each in reports.values())
    with Broker(log_dir, version=version) as broker:
        assert latest(Clients(gateway, broker.bootstrap), topics) == before
        assert not broker.errors()


def test_a_broker_starts_on_the_segments_that_remain_after_expire(gateway: Gateway, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    policy = {"cleanup.policy": "delete", "retention.bytes": "15000"}
    report = expire(log_dir, as_of=T + 240 * HOUR_MS, settings=policy, topics="[a-z].*", engine="local")
    shorter = [log for log in report.logs if log.expired_segments]
    assert len(shorter) > 5
    with Broker(log_dir) as broker:
        clients = Clients(gateway, broker.bootstrap)
        for log in shorter:
            begin, end = clients.end_offsets(log.topic)[log.partition]
            assert begin == log.end_offset, log.name
            read = [record.offset for record in clients.read_all(log.topic) if record.partition == log.partition]
            assert min(read, default=end) >= begin, log.name


def copies_differ(gateway: Gateway, written: Path, root: Path, topics: TopicConfigs) -> list[str]:
    """What is different between the job's copy of a directory, and what Kafka recovers and cleans."""
    now_ms, ours, kafkas = soon_after(written), root / "ours", root / "kafkas"
    shutil.copytree(written, kafkas)
    # without any, the directory would say nothing of the shutdown
    points = checkpoints(written, "recovery_points")
    write_offsets(kafkas, recovery_points={topic: points.get(f"{topic}-0", 0) for topic in topics})
    for report in clean_logs(LocalPasses, replace(request_for(written, now_ms, topics), output_dir=str(ours))).logs:
        assert report.status is LogStatus.CLEANED, report.reason
    logs = frozenset(TopicPartition(topic, 0) for topic in topics)
    for certified in certify_copy(written, ours, now_ms, topics, logs=logs).logs:
        assert certified.status is Status.HOLDS, certified.lines()
    found = []
    for topic, config in topics.items():
        assert clean_as_broker(gateway, kafkas, f"{topic}-0", config, now_ms).end_offset is not None
        mine, theirs = ours / f"{topic}-0", kafkas / f"{topic}-0"
        if not (written / CLEAN_SHUTDOWN).exists():
            forget_recovery(mine, theirs)
        found += differences(gateway, mine, theirs)
        assert (mine / LEADER_EPOCHS).read_bytes() == (theirs / LEADER_EPOCHS).read_bytes()
    return found


def forget_recovery(mine: Path, theirs: Path) -> None:
    """What only a broker that starts again writes: it writes to the active segment, of which zeros that a broker preallocated
    are not copied, and to its indexes; and snapshots."""
    active = max(theirs.glob("*.log"))
    used = (mine / active.name).stat()
    assert not any(active.read_bytes()[used.st_size :])
    os.truncate(active, used.st_size)
    os.utime(active, ns=(0, used.st_mtime_ns))
    forget_active_indexes(mine, theirs)
    forget_snapshots(mine, theirs)
    for side in (mine, theirs):
        (side / active.name).with_suffix(".txnindex").unlink(missing_ok=True)


@pytest.mark.parametrize("overrides", [{}, {"log.preallocate": "true"}], ids=["default", "preallocating"])
def test_killed_brokers_leave_logs_that_are_cleaned_as_kafka_does(
    gateway: Gateway, tmp_path: Path, overrides: dict[str, str]
) -> None:
    written, topics = tmp_path / "written", topics_of(gateway.release, "internal.segment.bytes")
    del topics["both"]
    with Broker(written, {**NEVER_MARKED, **overrides}) as broker:
        clients = Clients(gateway, broker.bootstrap)
        for topic, settings in topics.items():
            clients.create_topic(topic, 1, settings)
        write(clients, topics)
        broker.kill()
    assert not (written / CLEAN_SHUTDOWN).exists()
    assert copies_differ(gateway, written, tmp_path / "as left", topics) == []
    # as if its last entry had not been flushed; below the recovery point, Kafka trusts the index
    indexes = [index for index in written.glob("*/*.txnindex") if index.stat().st_size]
    assert len(indexes) > 1
    for index in indexes:
        os.truncate(index, index.stat().st_size - TXN_ENTRY_BYTES)
    write_offsets(written, recovery_points=dict.fromkeys(topics, 0))
    assert copies_differ(gateway, written, tmp_path / "shortened", topics) == []


def has_later_stable_offsets(partition: Path) -> bool:
    """Whether an entry of a transaction index has a last stable offset past the beginning of a later one's transaction. A
    follower's entries have that of the end of an append."""
    entries = [combinations(segment.aborted_txns, 2) for segment in read_partition(partition)]
    return any(one.last_stable_offset > later.first_offset for pairs in entries for one, later in pairs)


def caught_up(leader: Clients, follower: Path) -> None:
    """Waits until the follower's high watermark is the leader's end."""
    end = leader.end_offsets("txn")[0][1]
    wait_until(lambda: checkpoints(follower, "high_watermarks").get("txn-0") == end)


@pytest.fixture(scope="module")
def followers(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of the directory of a follower that was away, and then appended several transactions at once: after a clean
    shutdown; after it had appended more and was killed; and after it had lost its disk, and the leader's log had been
    compacted (``anew``)."""
    root = tmp_path_factory.mktemp("followers")
    follower, topics = root / "follower", topics_of(gateway.release, "internal.segment.bytes")
    with Broker(root / "leader") as leader:
        clients = Clients(gateway, leader.bootstrap)
        with Broker(follower, MARKED_OFTEN, beside=leader):
            clients.create_topic("txn", 1, topics["txn"], brokers=(1, 2))
        write_transactions(clients)
        with Broker(follower, MARKED_OFTEN, beside=leader):
            caught_up(clients, follower)
        shutil.copytree(follower, root / "stopped")
        write_transactions(clients)
        with Broker(follower, MARKED_OFTEN, beside=leader) as killed:
            caught_up(clients, follower)
            killed.kill()
        # a leader that stops before the killed follower is fenced can hand the partition to it, and nobody can write then
        wait_until(lambda: clients.brokers() == [1])
        shutil.copytree(follower, root / "killed")
    clean_locally(root / "leader", soon_after(root / "leader"), {"txn": topics["txn"]})
    shutil.rmtree(follower / "txn-0")
    with Broker(root / "leader") as leader:
        clients = Clients(gateway, leader.bootstrap)
        write_transactions(clients)
        with Broker(follower, MARKED_OFTEN, beside=leader):
            caught_up(clients, follower)
    shutil.copytree(follower, root / "anew")
    return root


@pytest.mark.parametrize("end", ["stopped", "killed", "anew"])
def test_a_follower_is_cleaned_as_by_kafka(followers: Path, gateway: Gateway, tmp_path: Path, end: str) -> None:
    written = followers / end
    assert (written / CLEAN_SHUTDOWN).exists() is (end != "killed")
    assert has_later_stable_offsets(written / "txn-0")
    assert not has_later_stable_offsets(written.with_name("leader") / "txn-0")
    config = topics_of(gateway.release, "internal.segment.bytes")["txn"]
    assert copies_differ(gateway, written, tmp_path, {"txn": config}) == []
