"""The directory of a real follower that was away, and then appended several transactions at once, is cleaned as by Kafka; so is
that of one that replicates a compacted log.

Entries of its transaction indexes differ from the leader's: last stable offsets are those of the end of an append.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import pytest

from compaction.certifier.certificate import Status
from compaction.names import CLEAN_SHUTDOWN
from compaction.report import LogStatus
from compaction.run.compact import clean_logs
from tests.certifier.certify import certify_copy
from tests.conformance.broker_dir import checkpoint, clean_as_broker, soon_after
from tests.conformance.compare import differences
from tests.conformance.kafkas import forget_active_indexes, forget_snapshots
from tests.kafka.broker import Broker
from tests.kafka.clients import Clients
from tests.kafka.gateway import Gateway
from tests.local_job import clean_locally, request_for
from tests.local_passes import LocalPasses
from tests.oracle.disk import read_partition
from tests.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOPIC, LOG = "txn", "txn-0"
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "internal.segment.bytes": "4000"}
#: a follower's high watermark bounds what is cleaned, also after a kill
_MARKED_OFTEN = {"replica.high.watermark.checkpoint.interval.ms": "200"}


@dataclass(frozen=True)
class Followers:
    """Copies of a follower's directory: after a clean shutdown; after it had appended more and was killed; and after it had
    lost its disk, and the leader's log had been compacted."""

    stopped: Path
    killed: Path
    anew: Path


def write(clients: Clients) -> None:
    """Transactions of several producers, one after the other, then some within a longer one; most of them are aborted."""
    with ExitStack() as stack:
        outer, *inner = (stack.enter_context(clients.producer(transactional_id=name)) for name in ("outer", "a", "b"))
        for producer in (outer, *inner):
            producer.java.initTransactions()
        for number in range(24):
            if number % 8 == 4:
                outer.java.beginTransaction()
                outer.send(TOPIC, b"outer", b"%d" % number * 20)
                outer.flush()
            producer = inner[number // 3 % 2]
            with producer.transaction(commit=number % 3 == 0):
                for at in range(4):
                    producer.send(TOPIC, b"k%d" % at, b"%d" % number * 20)
            if number % 8 == 7:
                outer.end(commit=number % 16 != 7)


def has_later_stable_offsets(partition: Path) -> bool:
    """Whether an entry of a transaction index has a last stable offset past the beginning of a later one's transaction."""
    entries = [combinations(segment.aborted_txns, 2) for segment in read_partition(partition)]
    return any(one.last_stable_offset > later.first_offset for pairs in entries for one, later in pairs)


def caught_up(leader: Clients, follower: Path) -> None:
    """Waits until the follower's high watermark is the leader's end."""
    end = leader.end_offsets(TOPIC)[0][1]
    wait_until(lambda: checkpoint(follower / "replication-offset-checkpoint").get(LOG) == end)


def follower_is_fenced(leader: Clients) -> None:
    """Waits until the cluster counts without the killed follower. A leader that stops before this can hand the partition to it,
    and is out of sync when it starts again: it does not lead then, and nobody can write."""
    wait_until(lambda: leader.brokers() == [1])


@pytest.fixture(scope="module")
def followers(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Followers:
    root = tmp_path_factory.mktemp("followers")
    follower = root / "follower"
    made = Followers(root / "stopped", root / "killed", root / "anew")
    with Broker(root / "leader") as leader:
        clients = Clients(gateway, leader.bootstrap)
        with Broker(follower, _MARKED_OFTEN, beside=leader):
            clients.create_topic(TOPIC, 1, CONFIG, brokers=(1, 2))
        write(clients)
        with Broker(follower, _MARKED_OFTEN, beside=leader):
            caught_up(clients, follower)
        shutil.copytree(follower, made.stopped)
        write(clients)
        with Broker(follower, _MARKED_OFTEN, beside=leader) as killed:
            caught_up(clients, follower)
            killed.kill()
        follower_is_fenced(clients)
        shutil.copytree(follower, made.killed)
    clean_locally(root / "leader", soon_after(root / "leader"), {TOPIC: CONFIG})
    shutil.rmtree(follower / LOG)
    with Broker(root / "leader") as leader:
        clients = Clients(gateway, leader.bootstrap)
        write(clients)
        with Broker(follower, _MARKED_OFTEN, beside=leader):
            caught_up(clients, follower)
    shutil.copytree(follower, made.anew)
    return made


@pytest.mark.parametrize("end", ["stopped", "killed", "anew"])
def test_a_follower_is_cleaned_as_by_kafka(followers: Followers, gateway: Gateway, tmp_path: Path, end: str) -> None:
    written: Path = getattr(followers, end)
    clean = (written / CLEAN_SHUTDOWN).exists()
    assert clean is (end != "killed")
    assert has_later_stable_offsets(written / LOG)
    assert not has_later_stable_offsets(written.with_name("leader") / LOG)
    now_ms = soon_after(written)
    ours, kafkas = tmp_path / "ours" / LOG, tmp_path / "kafkas" / LOG
    shutil.copytree(written, kafkas.parent)
    request = replace(request_for(written, now_ms, {TOPIC: CONFIG}), output_dir=str(ours.parent))
    (report,) = clean_logs(LocalPasses, request).logs
    assert report.status is LogStatus.CLEANED, report.reason
    (certified,) = certify_copy(written, ours.parent, now_ms, {TOPIC: CONFIG}).logs
    assert (certified.status, certified.violations) == (Status.HOLDS, ())
    assert clean_as_broker(gateway, kafkas.parent, LOG, CONFIG, now_ms) is not None
    if not clean:
        forget_active_indexes(ours, kafkas)
        for side in (ours, kafkas):
            forget_snapshots(side)
    assert differences(gateway, ours, kafkas) == []
