"""Logs of real brokers are cleaned as by Kafka's cleaner, and served again: brokers of several versions, killed brokers,
followers, and a broker with two log directories.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import pytest

from compaction import compact, expire
from compaction.certifier.certificate import Status
from compaction.names import CLEAN_SHUTDOWN, LEADER_EPOCHS, RECOVERY_POINTS
from compaction.report import LogStatus, RunReport
from compaction.rules.kafka_rules import NEWEST
from compaction.run.compact import clean_logs
from tests.certifier.certify import certify_copy
from tests.conformance.compare import differences
from tests.conformance.kafkas import checkpoint, clean_as_broker, forget_active_indexes, forget_snapshots, soon_after
from tests.golden import unpack_sample
from tests.kafka.broker import Broker
from tests.kafka.cleaner import CleanResult, clean_partition_if_due
from tests.kafka.clients import Clients, Consumed
from tests.kafka.gateway import Gateway
from tests.kafka.jars import REFERENCE
from tests.kafka.log import Opening
from tests.local_job import TopicConfigs, clean_locally, request_for
from tests.local_passes import LocalPasses
from tests.log.settings.guesses import known, settings_of
from tests.oracle.disk import read_partition, write_partition
from tests.oracle.logs import COMMIT, Batching, LogBuilder, Sent
from tests.oracle.records import decode
from tests.scenarios.runner import offsets_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

#: the last with ZooKeeper, the first without, the first that converts old batches; other tests have the newest
VERSIONS = ("2.8.2", "3.3.2", "4.0.2")
T = 1_700_000_000_000
HOUR_MS = 3_600_000
SEGMENT_BYTES = "2500"
#: what all versions name alike
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": str(HOUR_MS)}
CONFIG = {**COMPACT, "internal.segment.bytes": SEGMENT_BYTES}
#: of the brokers that are killed
TOPICS = dict.fromkeys(("plain", "txn", "open"), CONFIG)
TXN_ENTRY_BYTES = 34
#: all producers have expired
NEVER_MS = 1_800_000_000_000
#: of what a follower replicates
LOG, SMALL = "txn-0", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "internal.segment.bytes": "4000"}
#: the high watermark is written every five seconds otherwise: what is above it is not cleaned, also after a kill
MARKED_OFTEN = {"replica.high.watermark.checkpoint.interval.ms": "200"}
NEVER_MARKED = {"replica.high.watermark.checkpoint.interval.ms": "3600000"}


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
        soon_ms = soon_after(kafkas)
        ends: dict[str, int] = {}
        for now_ms in (soon_ms, soon_ms + 2 * HOUR_MS):
            clean_locally(ours, now_ms, dict.fromkeys(topics, CONFIG), kafka_version=version)
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
    reports = clean_locally(log_dir, soon_after(log_dir), dict.fromkeys(topics, CONFIG), kafka_version=REFERENCE)
    assert {reports[topic].status for topic in topics} == {LogStatus.CLEANED}
    with Broker(log_dir, version=version) as broker:
        clients = Clients(gateway, broker.bootstrap)
        served(clients, list(topics))
        for topic in topics:
            found = clients.read_all(topic, committed_only=True)
            assert set(found) < set(before[topic]), topic
            assert {each.key: each for each in found} == {each.key: each for each in before[topic]}, topic
        assert not broker.errors()


def write_and_kill(gateway: Gateway, log_dir: Path, overrides: Mapping[str, str]) -> None:
    """Superseded records, aborted and committed transactions, and in ``open`` one that has not ended."""
    with Broker(log_dir, {**NEVER_MARKED, **overrides}) as broker:
        clients = Clients(gateway, broker.bootstrap)
        write(clients, TOPICS)
        with clients.producer(transactional_id="y") as producer:
            producer.java.initTransactions()
            producer.java.beginTransaction()
            producer.send("open", b"k1", b"not committed")
            producer.flush()
            with clients.producer() as other:
                for at in range(60):
                    other.send("open", b"k%d" % (at % 5), b"%d" % at * 20)
            broker.kill()
            producer.vanish()


def copy(written: Path, target: Path, now_ms: int, topics: TopicConfigs) -> None:
    """The job copies a log directory, and cleans each of its logs."""
    request = replace(request_for(written, now_ms, topics), output_dir=str(target))
    for report in clean_logs(LocalPasses, request).logs:
        assert report.status is LogStatus.CLEANED, report.reason


def shorten(log_dir: Path) -> int:
    """Removes the last entry of each transaction index, as if it had not been flushed; how many."""
    found = [index for index in log_dir.glob("*/*.txnindex") if index.stat().st_size]
    for index in found:
        os.truncate(index, index.stat().st_size - TXN_ENTRY_BYTES)
    return len(found)


@pytest.mark.parametrize("overrides", [{}, {"log.preallocate": "true"}], ids=["default", "preallocating"])
def test_killed_brokers_leave_logs_that_are_cleaned_as_kafka_does(
    gateway: Gateway, tmp_path: Path, overrides: dict[str, str]
) -> None:
    written = tmp_path / "written"
    write_and_kill(gateway, written, overrides)
    assert not (written / CLEAN_SHUTDOWN).exists()
    now_ms = soon_after(written)
    for name in ("as left", "shortened"):
        kafkas, ours = tmp_path / f"kafkas {name}", tmp_path / f"ours {name}"
        if name == "shortened":
            assert shorten(written) > 1
            # below the recovery point, Kafka trusts the index
            (written / RECOVERY_POINTS).unlink(missing_ok=True)
        points = offsets_of(written, "recovery_points")
        copy(written, ours, now_ms, TOPICS)
        shutil.copytree(written, kafkas)
        for topic in TOPICS:
            theirs, mine = kafkas / f"{topic}-0", ours / f"{topic}-0"
            opening = Opening(now_ms, CONFIG, clean_shutdown=False, recovery_point=points.get(topic, 0))
            assert isinstance(clean_partition_if_due(gateway, theirs, opening, None), CleanResult)
            active = max(theirs.glob("*.log"))
            # zeros that a broker preallocated are not copied
            used = (mine / active.name).stat().st_size
            assert not any(active.read_bytes()[used:])
            os.truncate(active, used)
            # Kafka writes to it
            os.utime(active, ns=(0, (mine / active.name).stat().st_mtime_ns))
            forget_active_indexes(mine, theirs)
            if name == "shortened":
                # that of the active segment is written by Kafka's recovery, which the judge undoes
                for side in (mine, theirs):
                    (side / active.name).with_suffix(".txnindex").unlink(missing_ok=True)
            forget_snapshots(mine, theirs)
            assert differences(gateway, mine, theirs) == [], name
            assert (mine / LEADER_EPOCHS).read_bytes() == (theirs / LEADER_EPOCHS).read_bytes()


def superseded_transactions() -> LogBuilder:
    """Two producers whose records are superseded, and which have expired."""
    log = LogBuilder()
    for producer in (7, 8):
        log.batch([Sent(b"k%d" % producer, b"first", 0)], Batching(producer=producer, transactional=True))
        log.marker(producer, COMMIT, timestamp=0)
    log.roll(0)
    log.batch([Sent(b"k%d" % producer, b"second", 0) for producer in (7, 8)])
    log.roll(0)
    log.batch([Sent(b"k", b"active", 0)])
    return log


def test_with_corrupt_snapshots_the_producers_of_the_batches_are_retained_as_by_kafka(gateway: Gateway, tmp_path: Path) -> None:
    """A broker that has read them from the batches forgets them at its next check only, though they have expired."""
    kafkas, ours = tmp_path / "kafkas" / "txn-0", tmp_path / "ours" / "txn-0"
    write_partition(kafkas, superseded_transactions().build(NEVER_MS))
    (kafkas / f"{max(int(file.stem) for file in kafkas.glob('*.log')):020d}.snapshot").write_bytes(b"\0\1garbage")
    shutil.copytree(kafkas, ours)
    assert clean_locally(ours.parent, NEVER_MS, {"txn": COMPACT})["txn"].status is LogStatus.CLEANED
    opening = Opening(NEVER_MS, COMPACT, clean_shutdown=True, checks_producers=False)
    assert isinstance(clean_partition_if_due(gateway, kafkas, opening, None), CleanResult)
    forget_snapshots(ours, kafkas)
    assert differences(gateway, ours, kafkas) == []
    batches = [batch for file in sorted(ours.glob("*.log")) for batch in decode(file.read_bytes())]
    assert [batch.producer_id for batch in batches if not batch.count] == [7, 8]


def write_transactions(clients: Clients) -> None:
    """Transactions of several producers, one after the other, then some within a longer one; most of them are aborted."""
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


def has_later_stable_offsets(partition: Path) -> bool:
    """Whether an entry of a transaction index has a last stable offset past the beginning of a later one's transaction. A
    follower's entries have that of the end of an append."""
    entries = [combinations(segment.aborted_txns, 2) for segment in read_partition(partition)]
    return any(one.last_stable_offset > later.first_offset for pairs in entries for one, later in pairs)


def caught_up(leader: Clients, follower: Path) -> None:
    """Waits until the follower's high watermark is the leader's end."""
    end = leader.end_offsets("txn")[0][1]
    wait_until(lambda: checkpoint(follower / "replication-offset-checkpoint").get(LOG) == end)


def follower_is_fenced(leader: Clients) -> None:
    """Waits until the cluster counts without the killed follower. A leader that stops before this can hand the partition to it,
    and is out of sync when it starts again: it does not lead then, and nobody can write."""
    wait_until(lambda: leader.brokers() == [1])


@pytest.fixture(scope="module")
def followers(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of the directory of a follower that was away, and then appended several transactions at once: after a clean
    shutdown; after it had appended more and was killed; and after it had lost its disk, and the leader's log had been
    compacted (``anew``)."""
    root = tmp_path_factory.mktemp("followers")
    follower = root / "follower"
    with Broker(root / "leader") as leader:
        clients = Clients(gateway, leader.bootstrap)
        with Broker(follower, MARKED_OFTEN, beside=leader):
            clients.create_topic("txn", 1, SMALL, brokers=(1, 2))
        write_transactions(clients)
        with Broker(follower, MARKED_OFTEN, beside=leader):
            caught_up(clients, follower)
        shutil.copytree(follower, root / "stopped")
        write_transactions(clients)
        with Broker(follower, MARKED_OFTEN, beside=leader) as killed:
            caught_up(clients, follower)
            killed.kill()
        follower_is_fenced(clients)
        shutil.copytree(follower, root / "killed")
    clean_locally(root / "leader", soon_after(root / "leader"), {"txn": SMALL})
    shutil.rmtree(follower / LOG)
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
    clean = (written / CLEAN_SHUTDOWN).exists()
    assert clean is (end != "killed")
    assert has_later_stable_offsets(written / LOG)
    assert not has_later_stable_offsets(written.with_name("leader") / LOG)
    now_ms = soon_after(written)
    ours, kafkas = tmp_path / "ours" / LOG, tmp_path / "kafkas" / LOG
    shutil.copytree(written, kafkas.parent)
    copy(written, ours.parent, now_ms, {"txn": SMALL})
    (certified,) = certify_copy(written, ours.parent, now_ms, {"txn": SMALL}).logs
    assert (certified.status, certified.violations) == (Status.HOLDS, ())
    assert clean_as_broker(gateway, kafkas.parent, LOG, SMALL, now_ms) is not None
    if not clean:
        forget_active_indexes(ours, kafkas)
        forget_snapshots(ours, kafkas)
    assert differences(gateway, ours, kafkas) == []


COMPACTED = tuple(f"compacted-{number}" for number in range(4))
DELETED = tuple(f"deleted-{number}" for number in range(4))
KEYS, HOURS = 10, 6
#: by then everything has expired, also by Kafka's default
EXPIRED_MS = T + 300 * HOUR_MS


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


@pytest.fixture
def directories(gateway: Gateway, tmp_path: Path) -> Directories:
    made = Directories(tmp_path / "first", tmp_path / "second")
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
                        value, stamp = b"value-%d" % hour, T + hour * (HOUR_MS + 1)
                        producer.send(topic, b"key-%d" % key, value, timestamp=stamp)
                producer.flush()
    assert made.logs(COMPACTED)
    assert made.logs(DELETED)
    return made


def segments(log_dir: Path) -> dict[str, int]:
    files = [file for file in log_dir.rglob("*.log") if file.parent.name != "__cluster_metadata-0"]
    return {str(file.relative_to(log_dir)): file.stat().st_size for file in files}


def with_status(report: RunReport, status: LogStatus) -> set[str]:
    return {log.name for log in report.logs if log.status is status}


def test_a_log_directory_has_its_policies_from_the_metadata_log_in_another_one(
    directories: Directories, gateway: Gateway
) -> None:
    first, second = directories.first, directories.second
    before = segments(second)
    report = expire(second, as_of=EXPIRED_MS, engine="local")
    assert with_status(report, LogStatus.FAILED) == directories.logs((*COMPACTED, *DELETED))
    assert all(log.policy_unknown for log in report.logs)
    assert segments(second) == before

    report = expire(second, as_of=EXPIRED_MS, metadata=first, engine="local")
    assert {log.name for log in report.logs if log.expired_segments} == directories.logs(DELETED)
    assert with_status(report, LogStatus.SKIPPED) == directories.logs(COMPACTED)
    report = expire([first, second], as_of=EXPIRED_MS, engine="local")
    assert {log.name for log in report.logs if log.expired_segments} == {f"{t}-0" for t in DELETED} - directories.logs(DELETED)
    report = compact([second, first], as_of=EXPIRED_MS, settings={"min.cleanable.dirty.ratio": "0"}, engine="local")
    assert with_status(report, LogStatus.CLEANED) == {f"{topic}-0" for topic in COMPACTED}
    with Broker(first, directories.overrides) as broker:
        clients = Clients(gateway, broker.bootstrap)
        for topic in COMPACTED:
            left = {record.key: record.value for record in clients.read_all(topic)}
            assert left == {b"key-%d" % key: b"value-%d" % (HOURS - 1) for key in range(KEYS)}, topic
        for topic in DELETED:
            assert clients.read_all(topic) == [], topic
        assert broker.errors() == []


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
