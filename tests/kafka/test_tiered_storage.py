"""A broker uploads segments to ``LocalTieredStorage``. Another one serves what a compacted copy of them has, and the broker
itself serves compacted uploads."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from compaction.files.filesystem import join
from compaction.files.mixed import MixedFileSystem
from compaction.files.uri import parse_uri
from tests.commands.test_exports import job
from tests.kafka.broker import Broker, host_partition
from tests.kafka.clients import Clients, Consumed
from tests.kafka.gateway import Gateway
from tests.kafka.jars import tiered_storage_jar
from tests.object_store.local_run import COMPACT, run
from tests.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

#: after the broker's own times, which markers have: only a transaction's first records begin a segment
T, HOUR = 2_000_000_000_000, 3_600_000
SETTINGS = {
    "remote.storage.enable": "true",
    "segment.ms": str(HOUR),
    "retention.ms": "-1",
    "message.timestamp.after.max.ms": str(2**63 - 1),
}
#: of the broker that uploads
VERSION = "4.3.0"
#: each batch of records is a segment
BATCHES = 6
_DEADLINE_S = 30


def tiered(storage: Path) -> dict[str, str]:
    """The properties of a broker that uploads inactive segments to a directory at once."""
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.dir": str(storage),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "remote.log.manager.task.interval.ms": "200",
    }


def produce(clients: Clients, batches: range) -> None:
    """Transactions, every third one aborted; each begins a segment."""
    with clients.producer(transactional_id="x", compression_type="zstd") as producer:
        producer.java.initTransactions()
        for number in batches:
            with producer.transaction(commit=number % 3 != 1):
                for at in range(20):
                    stamp = T + number * (HOUR + 1) + at
                    value = None if (number, at) == (5, 3) else b"%d of %d" % (at, number)
                    producer.send("orders", b"key-%d" % (at + number), value, timestamp=stamp)


def wait_for_uploads(storage: Path, count: int) -> None:
    wait_until(lambda: len(list(storage.rglob("orders-0-*/*.snapshot"))) >= count, _DEADLINE_S)


def latest(records: Sequence[Consumed]) -> dict[bytes | None, Consumed]:
    return {record.key: record for record in records}


def without_uploaded(log: Path) -> int:
    """Removes the local segments of a stopped broker that are uploaded, and the cache of their indexes; returns the offset from
    which on records are local."""
    first = max(int(path.stem) for path in log.glob("*.log"))
    for path in log.iterdir():
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex") and int(path.stem) < first:
            path.unlink()
    shutil.rmtree(log.parent / "remote-log-index-cache", ignore_errors=True)
    return first


def test_a_broker_serves_the_compacted_copy_of_what_another_one_uploaded(gateway: Gateway, tmp_path: Path) -> None:
    jar, logs, storage = tiered_storage_jar(VERSION), tmp_path / "logs", tmp_path / "storage"
    # two leader epochs: a broker that starts again is a new leader
    for batches in (range(3), range(3, BATCHES)):
        with Broker(logs, tiered(storage), version=VERSION, jars=[jar]) as broker:
            clients = Clients(gateway, broker.bootstrap)
            if not batches.start:
                clients.create_topic("orders", 1, SETTINGS)
            produce(clients, batches)
            wait_for_uploads(storage, batches.stop - 1)
            before = clients.read_all("orders", committed_only=True)
    export = f"local-tiered+file://{storage}/kafka-tiered-storage"
    log = join(parse_uri(export, "--log-dir"), "orders-0")
    files = MixedFileSystem()
    uploaded = [name for name in files.listdir(log) if name.endswith(".log")]
    assert len(uploaded) == BATCHES - 1
    for name in files.listdir(log):
        if name.endswith((".log", ".index", ".timeindex", ".txnindex", ".snapshot")):
            assert files.read_bytes(join(log, name)) == (logs / "orders-0" / name).read_bytes(), name
    # one epoch of each start
    assert len(files.read_bytes(join(log, "leader-epoch-checkpoint")).splitlines()) == 4
    report = run("--log-dir", export, "--tail", logs, "--output-dir", tmp_path / "out", *COMPACT)
    assert [(each.name, each.status.value) for each in report.logs] == [("orders-0", "cleaned")]
    with Broker(tmp_path / "served") as broker:
        Clients(gateway, broker.bootstrap).create_topic("orders", 1, {"cleanup.policy": "compact"})
    host_partition(tmp_path / "served", tmp_path / "out" / "orders-0")
    with Broker(tmp_path / "served") as broker:
        after = Clients(gateway, broker.bootstrap).read_all("orders", committed_only=True)
        assert not broker.errors()
    assert latest(after) == latest(before)
    assert len(after) == len(latest(before)) < len(before)
    # the first broker again, whose metadata has the old sizes and no local segments below the tier's end
    target = tmp_path / "new" / "kafka-tiered-storage"
    assert job("--log-dir", export, "--output-dir", target, "--output-layout", "local-tiered") == 0
    names = [sorted(path.name for path in place.rglob("*.log")) for place in (target, storage / target.name)]
    assert names[0] == names[1]
    local_from = without_uploaded(logs / "orders-0")
    with Broker(logs, tiered(target.parent), version=VERSION, jars=[jar]) as broker:
        after = Clients(gateway, broker.bootstrap).read_all("orders", committed_only=True)
        # a consumer may come before the broker has read what is in the tier; it tries again
        assert [line for line in broker.errors() if "initialized: false" not in line] == []
    assert list((logs / "remote-log-index-cache").iterdir())
    assert latest(after) == latest(before)
    assert set(after) < set(before)
    assert [each for each in after if each.offset >= local_from] == [each for each in before if each.offset >= local_from]
    # the last upload may have an open transaction, which is not cleaned
    cleaned = [each for each in after if each.offset < int(names[0][-1].partition("-")[0])]
    assert len(latest(cleaned)) == len(cleaned) > 0
