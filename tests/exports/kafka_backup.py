"""Backs a topic up with the real kafka-backup, and restores sets with it.

``python -m tests.exports.kafka_backup --command kafka-backup``: the command is its CLI, or a program with the subcommands
``backup`` and ``restore`` and the option ``--config``. A topic is backed up in each compression, the sets are compacted into
new sets, and these are restored: the new topics must have what a consumer of the old one saw, compacted. With
``--write-golden``, ``tests/golden/backup-sets.tar.gz`` is written instead.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.kafka.broker import Broker
from tests.kafka.clients import Clients, Consumed
from tests.kafka.gateway import Gateway

COMPRESSIONS = ("none", "zstd", "lz4")
TOPIC = "orders"
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "backup-sets.tar.gz"
T0 = 1_700_000_000_000


def produce(clients: Clients) -> None:
    """Two partitions; transactions of which every third is aborted, tombstones, headers without values, no key, no value."""
    clients.create_topic(TOPIC, 2, {"cleanup.policy": "compact"})
    with clients.producer(transactional_id="x", compression_type="zstd") as producer:
        producer.java.initTransactions()
        for number in range(9):
            with producer.transaction(commit=number % 3 != 1):
                for at in range(40):
                    key, value = b"k%d" % (at % 13), None if at % 11 == 5 else b"value %d " % number * (at + 1)
                    headers = [("null", None), ("empty", b""), ("h", b"%d" % at)][: at % 4]
                    producer.send(TOPIC, key, value, timestamp=T0 + number * 1000 + at, headers=headers)
    with clients.producer() as producer:
        producer.send(TOPIC, b"last", b"x" * 100_000, timestamp=T0)


def config(mode: str, compression: str, storage: Path, bootstrap: str, topics: dict[str, str]) -> dict[str, Any]:
    """The configuration file, as JSON, which is YAML; the set is named like its compression."""
    base = {"mode": mode, "backup_id": compression, "storage": {"backend": "filesystem", "path": str(storage)}}
    side = {"bootstrap_servers": [bootstrap], "topics": {"include": [TOPIC]}}
    if mode == "backup":
        options = {"compression": compression, "stop_at_current_offsets": True, "segment_max_bytes": 20_000}
        options |= {"include_offset_headers": False, "isolation_level": "read_committed"}
        return {**base, "source": side, "backup": options}
    return {**base, "target": side, "restore": {"create_topics": True, "topic_mapping": topics}}


def call(command: str, document: dict[str, Any]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(document, file)
        file.flush()
        done = subprocess.run([command, document["mode"], "--config", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command} {document['mode']}: exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


@contextmanager
def backed_up(command: str, scratch: Path) -> Iterator[tuple[Clients, str, list[Consumed]]]:
    """A broker with the topic, whose sets are in ``scratch / "sets"``, and what a consumer sees of it."""
    with closing(Gateway()) as gateway, Broker(scratch / "broker") as broker:
        clients = Clients(gateway, broker.bootstrap)
        produce(clients)
        for compression in COMPRESSIONS:
            call(command, config("backup", compression, scratch / "sets", broker.bootstrap, {}))
        yield clients, broker.bootstrap, clients.read_all(TOPIC, committed_only=True)


def newest(records: list[Consumed]) -> dict[tuple[int, bytes | None], tuple[Any, ...]]:
    return {(each.partition, each.key): (each.timestamp, each.value, each.headers) for each in records}


def compacted(source: Path, target: Path) -> None:
    command = [sys.executable, "-m", "compaction", "compact", "--log-dir", f"backup+file://{source}", "--include-active"]
    command += ["--set", "cleanup.policy=compact", "--set", "min.cleanable.dirty.ratio=0", "--output-dir", str(target)]
    command += ["--output-layout", "backup", "--accept-loss", "--verify", "--quiet"]
    subprocess.run(command, check=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--command", required=True)
    options.add_argument("--write-golden", action="store_true")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        with backed_up(arguments.command, scratch) as (clients, bootstrap, seen):
            if arguments.write_golden:
                (scratch / "sets" / "consumed.json").write_text(json.dumps([_row(each) for each in seen]))
                with tarfile.open(GOLDEN, "w:gz") as archive:
                    archive.add(scratch / "sets", "backup-sets")
                return
            for compression in COMPRESSIONS:
                compacted(scratch / "sets" / compression, scratch / "compacted" / compression)
                topic = f"restored-{compression}"
                call(arguments.command, config("restore", compression, scratch / "compacted", bootstrap, {TOPIC: topic}))
                found = clients.read_all(topic)
                assert newest(found) == newest(seen), compression
                assert len(found) == len({(each.partition, each.key) for each in seen}), compression
                sys.stdout.write(f"{compression}: {len(seen)} records, {len(found)} after compaction and restore\n")
        shutil.rmtree(scratch / "broker", ignore_errors=True)


def _row(record: Consumed) -> list[Any]:
    """A record for JSON, bytes in hex."""
    key, value = (None if each is None else each.hex() for each in (record.key, record.value))
    headers = [(name, None if content is None else content.hex()) for name, content in record.headers]
    return [record.partition, record.offset, record.timestamp, key, value, headers]


if __name__ == "__main__":
    main()
