"""Has Aiven's plugin and the real kafka-backup read back what this project has written.

``python -m tests.exports.other_tools aiven CLASSPATH``: that of the plugin's ``core`` and ``filesystem`` with what they need
(``tests/golden/README.md``). The golden objects are compacted in each encoding. The plugin then reads every segment as a broker
has it do, by the sizes from before the compaction: it must return the bytes that this project reads.

``python -m tests.exports.other_tools backup COMMAND``: its CLI, or a program with the subcommands ``backup`` and ``restore``
and the option ``--config``. A topic is backed up in each compression, the sets are compacted into new sets, and these are
restored: the new topics must have what a consumer of the old one saw, compacted. With ``--write-golden``,
``tests/golden/backup-sets.tar.gz`` is written instead.
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

from compaction.exports import Place
from compaction.exports.aiven import AivenReader
from compaction.exports.stored_segments import read_file
from compaction.files.data_keys import add_private_keys
from compaction.files.filesystem import join
from compaction.files.mixed import MixedFileSystem
from compaction.files.uri import parse_uri
from tests.exports.exports import CODINGS, LOG_NAME
from tests.golden import AIVEN_OBJECTS
from tests.kafka.broker import Broker
from tests.kafka.clients import Clients, Consumed
from tests.kafka.gateway import Gateway, java_executable

_KINDS = {".log": ".log", ".index": ".OFFSET", ".timeindex": ".TIMESTAMP", ".snapshot": ".PRODUCER_SNAPSHOT"}


def compacted(layout: str, source: Path, target: Path, *more: str) -> None:
    command = [sys.executable, "-m", "compaction", "compact", "--log-dir", f"{layout}+file://{source}", "--include-active"]
    command += ["--set", "cleanup.policy=compact", "--set", "min.cleanable.dirty.ratio=0", "--output-dir", str(target)]
    subprocess.run([*command, "--output-layout", layout, *more, "--verify", "--quiet"], check=True)


def settings(coding: str, key: Path) -> list[str]:
    """Of the plugin."""
    pair = "encryption.key.pairs.key1"
    keys = [f"{pair}.private.key.file={key}", f"{pair}.public.key.file={key.with_name('public-key.pem')}"]
    encryption = ["encryption.enabled=true", "encryption.key.pair.id=key1", "encryption.key.pairs=key1", *keys]
    compression = ["compression.enabled=true"] if "zstd" in coding else []
    return ["chunk.size=256", *compression, *(encryption if "encrypted" in coding else [])]


def write_public_key(key: Path) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    public = load_pem_private_key(key.read_bytes(), None).public_key()
    key.with_name("public-key.pem").write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def compare(root: Path, found: Path) -> tuple[int, int]:
    """The number of segments and of their bytes; what the plugin read is what this project reads."""
    address, files, size = parse_uri(f"aiven+file://{root}", "--log-dir"), MixedFileSystem(), 0
    layout = AivenReader(Place(files, address, str(root)))
    (log,) = layout.logs()
    segments = layout.stored(log).segments
    for segment in segments:
        stem = found / Path(segment.path).relative_to(root).with_suffix("")
        for kind, suffix in _KINDS.items():
            file = segment.files[kind]
            # encoded logs are in the layout
            data = read_file(files, file)
            assert Path(f"{stem}{suffix}").read_bytes() == data, (segment.path, kind)
            size += len(data)
        txns = Path(f"{stem}.TRANSACTION")
        expected = read_file(files, segment.files[".txnindex"]) if ".txnindex" in segment.files else b""
        assert (txns.read_bytes() if txns.exists() else b"") == expected, segment.path
        lineage = Path(f"{stem}.LEADER_EPOCH").read_text().splitlines()
        assert segment.lineage is not None
        assert lineage[2:] == [f"{entry.epoch} {entry.start_offset}" for entry in segment.lineage()], segment.path
    assert join(address, LOG_NAME).endswith(str(log))
    return len(segments), size


def with_aivens_plugin(classpath: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        with tarfile.open(AIVEN_OBJECTS) as archive:
            archive.extractall(scratch, filter="data")
        key = scratch / "private-key.pem"
        write_public_key(key)
        add_private_keys([f"key1={key}"])
        java, classes = java_executable(), scratch / "classes"
        driver = Path(__file__).with_name("ReadBack.java")
        subprocess.run([f"{java}c", "-d", str(classes), "-cp", classpath, str(driver)], check=True)
        for coding in CODINGS:
            target, found = scratch / "compacted" / coding, scratch / "read" / coding
            compacted("aiven", scratch / coding, target, "--private-key", f"key1={key}")
            command = [java, "-cp", f"{classes}:{classpath}", "io.aiven.kafka.tieredstorage.ReadBack"]
            subprocess.run([*command, str(target), str(scratch / coding), str(found), *settings(coding, key)], check=True)
            segments, size = compare(target, found)
            sys.stdout.write(f"{coding}: {segments} segments, {size} bytes read back\n")


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


def with_kafka_backup(command: str, *, write_golden: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        with backed_up(command, scratch) as (clients, bootstrap, seen):
            if write_golden:
                (scratch / "sets" / "consumed.json").write_text(json.dumps([_row(each) for each in seen]))
                with tarfile.open(GOLDEN, "w:gz") as archive:
                    archive.add(scratch / "sets", "backup-sets")
                return
            for compression in COMPRESSIONS:
                compacted("backup", scratch / "sets" / compression, scratch / "compacted" / compression, "--accept-loss")
                topic = f"restored-{compression}"
                call(command, config("restore", compression, scratch / "compacted", bootstrap, {TOPIC: topic}))
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
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("tool", choices=("aiven", "backup"))
    options.add_argument("program")
    options.add_argument("--write-golden", action="store_true")
    arguments = options.parse_args()
    if arguments.tool == "aiven":
        with_aivens_plugin(arguments.program)
    else:
        with_kafka_backup(arguments.program, write_golden=arguments.write_golden)
