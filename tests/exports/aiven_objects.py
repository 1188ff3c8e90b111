"""Writes the segments of a log directory as objects of Aiven's plugin, in chunks of any size: for tests and benchmarks.

Encryption and the list of chunk sizes are those of the package, which reads objects of the plugin itself
(``tests.golden.AIVEN_OBJECTS``). Objects have the modification times of their segments.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compaction.exports.aiven_objects import ChunkCoding, encoded, encrypted
from compaction.exports.aiven_writer import _chunk_index, _positions
from compaction.exports.lineage import within
from compaction.files.data_keys import DATA_KEY_BYTES, _wrap
from compaction.formats.checkpoints import parse_leader_epochs
from compaction.formats.producer_snapshot import write_snapshot
from compaction.names import parse_partition_dir

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

KEY_ID = "key1"
_HEADER_BYTES = 61
_EPOCHS = "0\n1\n0 0\n"
#: of names and keys
_CHANCE = random.Random(1)


@dataclass(frozen=True)
class AivenWriter:
    """How objects are written; ``key`` wraps a data key for each segment, without it nothing is encrypted."""

    compressed: bool = False
    key: RSAPrivateKey | None = None
    chunk_bytes: int = 4 << 20
    topic_id: str = "yRqOh-tNTbqSiFrSsG2z8g"

    def write(self, log: Path, export: Path) -> None:
        """All segments with records of a partition directory."""
        name = parse_partition_dir(log.name)
        assert name is not None
        target = export / f"{name.topic}-{self.topic_id}" / str(name.partition)
        target.mkdir(parents=True)
        for segment in sorted(log.glob("*.log")):
            if segment.stat().st_size:
                self._upload(segment, target)

    def _upload(self, log: Path, target: Path) -> None:
        upload_id = base64.urlsafe_b64encode(_CHANCE.randbytes(16)).decode().rstrip("=")
        data_key = None if self.key is None else _CHANCE.randbytes(DATA_KEY_BYTES)
        coding, sizes = ChunkCoding(self.compressed, data_key, _CHANCE.randbytes(32)), list[int]()
        path = target / f"{log.stem}-{upload_id}"
        with log.open("rb") as file, path.with_suffix(".log").open("wb") as out:
            while data := file.read(self.chunk_bytes):
                sizes.append(out.write(encoded(data, coding)))
        epochs, end = log.with_name("leader-epoch-checkpoint"), end_offset(log)
        lineage = epochs.read_text() if epochs.exists() else _EPOCHS
        sections = {name: encrypted(data, coding) if data else data for name, data in _sections(log, end, lineage)}
        path.with_suffix(".indexes").write_bytes(b"".join(data for data in sections.values() if data))
        manifest = {
            "version": "1",
            "chunkIndex": _chunk_index(log.stat().st_size, self.chunk_bytes, coding, sizes),
            "segmentIndexes": {name: at for name, at in _positions(sections).items() if at is not None},
            "compression": self.compressed,
            **({} if self.key is None else {"encryption": _encryption(self.key, coding)}),
            "remoteLogSegmentMetadata": self._metadata(log, upload_id, end, lineage),
        }
        path.with_suffix(".rsm-manifest").write_text(json.dumps(manifest))
        for suffix in (".log", ".indexes", ".rsm-manifest"):
            shutil.copystat(log, path.with_suffix(suffix))

    def _metadata(self, log: Path, upload_id: str, end: int, lineage: str) -> dict[str, Any]:
        name, start, when = parse_partition_dir(log.parent.name), int(log.stem), log.stat().st_mtime_ns // 1_000_000
        assert name is not None
        topic = {"topicId": self.topic_id, "topicPartition": {"topic": name.topic, "partition": name.partition}}
        return {
            "remoteLogSegmentId": {"topicIdPartition": topic, "id": upload_id},
            "startOffset": start,
            "endOffset": end - 1,
            "maxTimestampMs": when,
            "brokerId": 1,
            "eventTimestampMs": when,
            "segmentLeaderEpochs": {str(epoch): at for epoch, at in within(parse_leader_epochs(lineage, ""), start, end)},
        }


def _sections(log: Path, end: int, lineage: str) -> Iterator[tuple[str, bytes | None]]:
    """In their order; a log without transactions has no index of them."""
    snapshot, txns = log.with_name(f"{end:020d}.snapshot"), log.with_suffix(".txnindex")
    for name, suffix in (("offset", ".index"), ("timestamp", ".timeindex")):
        yield name, log.with_suffix(suffix).read_bytes() if log.with_suffix(suffix).exists() else b""
    yield "producerSnapshot", snapshot.read_bytes() if snapshot.exists() else write_snapshot([])
    yield "leaderEpoch", lineage.encode()
    yield "transaction", txns.read_bytes() if txns.exists() else None


def _encryption(key: RSAPrivateKey, coding: ChunkCoding) -> dict[str, str]:
    assert coding.key is not None
    wrapped = base64.b64encode(_wrap(key, coding.key)).decode()
    return {"dataKey": f"{KEY_ID}:{wrapped}", "aad": base64.b64encode(coding.aad).decode()}


def new_key(file: Path) -> RSAPrivateKey:
    """A private key, written to a PEM file."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = rsa.generate_private_key(65537, 2048)
    file.write_bytes(key.private_bytes(*form))
    return key


def end_offset(log: Path) -> int:
    """One past the last offset, by the headers of the batches."""
    at, end = 0, int(log.stem)
    with log.open("rb") as file:
        while len(head := file.read(_HEADER_BYTES)) == _HEADER_BYTES:
            end = int.from_bytes(head[:8], "big") + int.from_bytes(head[23:27], "big") + 1
            at += 12 + int.from_bytes(head[8:12], "big")
            file.seek(at)
    return end
