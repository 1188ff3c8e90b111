"""Copies of the directories of brokers that were killed are cleaned as Kafka's cleaner does after it has recovered the logs.

There is no clean shutdown: Kafka reads every segment from the recovery point on again, and rebuilds what it finds beside them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from compaction.names import CLEAN_SHUTDOWN, LEADER_EPOCHS, RECOVERY_POINTS
from compaction.report import LogStatus
from compaction.run.compact import clean_logs
from tests.conformance.broker_dir import soon_after
from tests.conformance.compare import differences
from tests.conformance.kafkas import forget_active_indexes, forget_snapshots
from tests.conformance.test_brokers import COMPACT, SEGMENT_BYTES, write
from tests.kafka.broker import Broker
from tests.kafka.cleaner import CleanResult, clean_partition_if_due
from tests.kafka.clients import Clients
from tests.kafka.gateway import Gateway
from tests.kafka.log import Opening
from tests.local_job import clean_locally, read_offsets, request_for
from tests.local_passes import LocalPasses
from tests.oracle.disk import write_partition
from tests.oracle.logs import COMMIT, Batching, LogBuilder, Sent
from tests.oracle.records import decode

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CONFIG = {**COMPACT, "internal.segment.bytes": SEGMENT_BYTES}
TOPICS = dict.fromkeys(("plain", "txn", "open"), CONFIG)
TXN_ENTRY_BYTES = 34
#: written every five seconds otherwise: what is above it is not cleaned, and what that is depends on the time of the kill
NO_HIGH_WATERMARK = {"replica.high.watermark.checkpoint.interval.ms": "3600000"}
#: all producers have expired
NEVER_MS = 1_800_000_000_000


def write_and_kill(gateway: Gateway, log_dir: Path, overrides: Mapping[str, str]) -> None:
    """Superseded records, aborted and committed transactions, and in ``open`` one that has not ended."""
    with Broker(log_dir, {**NO_HIGH_WATERMARK, **overrides}) as broker:
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
    points = read_offsets(written, "recovery_points") if (written / RECOVERY_POINTS).exists() else {}
    now_ms = soon_after(written)
    for name in ("as left", "shortened"):
        kafkas, ours = tmp_path / f"kafkas {name}", tmp_path / f"ours {name}"
        if name == "shortened":
            assert shorten(written) > 1
            # below the recovery point, Kafka trusts the index
            (written / RECOVERY_POINTS).unlink(missing_ok=True)
            points = {}
        request = replace(request_for(written, now_ms, TOPICS), output_dir=str(ours))
        reports = {log.topic: log for log in clean_logs(LocalPasses, request).logs}
        shutil.copytree(written, kafkas)
        for topic in TOPICS:
            assert reports[topic].status is LogStatus.CLEANED, reports[topic].reason
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
            for side in (mine, theirs):
                forget_snapshots(side)
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
    for side in (ours, kafkas):
        forget_snapshots(side)
    assert differences(gateway, ours, kafkas) == []
    batches = [batch for file in sorted(ours.glob("*.log")) for batch in decode(file.read_bytes())]
    assert [batch.producer_id for batch in batches if not batch.count] == [7, 8]
