"""Writes the segments of a log directory as objects of Aiven's plugin, in chunks of any size: for tests and benchmarks.

Objects have the modification times of their segments.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zstandard

from compaction.files import data_keys
from compaction.formats.checkpoints import EpochEntry, parse_leader_epochs
from compaction.formats.producer_snapshot import write_snapshot
from compaction.names import parse_partition_dir

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

KEY_ID = "key1"
_SECTIONS = {"offset": ".index", "timestamp": ".timeindex", "producerSnapshot": ".snapshot", "transaction": ".txnindex"}
_HEADER_BYTES = 61
_EPOCHS = "0\n1\n0 0\n"
#: of names, keys and nonces
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
                _Segment(self, segment, target).write()


class _Segment:
    """One upload."""

    def __init__(self, writer: AivenWriter, log: Path, target: Path) -> None:
        self._writer, self._log = writer, log
        self._id = base64.urlsafe_b64encode(_CHANCE.randbytes(16)).decode().rstrip("=")
        self._path = target / f"{log.stem}-{self._id}"
        self._data_key, self._aad = _CHANCE.randbytes(32), _CHANCE.randbytes(32)
        self._end_offset = end_offset(log)

    def write(self) -> None:
        stored = []
        with self._path.with_suffix(".log").open("wb") as out:
            for data in self._chunks():
                stored.append(len(data))
                out.write(data)
        sections = {name: self._sealed(data) for name, data in self._indexes() if data is not None}
        self._path.with_suffix(".indexes").write_bytes(b"".join(sections.values()))
        manifest = self._manifest(stored, {name: len(data) for name, data in sections.items()})
        self._path.with_suffix(".rsm-manifest").write_text(json.dumps(manifest))
        for suffix in (".log", ".indexes", ".rsm-manifest"):
            shutil.copystat(self._log, self._path.with_suffix(suffix))

    def _chunks(self) -> Iterator[bytes]:
        with self._log.open("rb") as file:
            while data := file.read(self._writer.chunk_bytes):
                yield self._sealed(zstandard.ZstdCompressor().compress(data) if self._writer.compressed else data)

    @cached_property
    def _cipher(self) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self._data_key)

    def _sealed(self, data: bytes) -> bytes:
        if self._writer.key is None or not data:
            return data
        nonce = _CHANCE.randbytes(12)
        sealed: bytes = nonce + self._cipher.encrypt(nonce, data, self._aad)
        return sealed

    def _indexes(self) -> Iterator[tuple[str, bytes | None]]:
        """The sections, in their order: the leader epochs are before the transaction index."""
        for name, suffix in _SECTIONS.items():
            if name == "transaction":
                yield "leaderEpoch", self._epochs.encode()
            stem = self._log.stem if suffix != ".snapshot" else f"{self._end_offset:020d}"
            file = self._log.with_name(stem + suffix)
            missing = write_snapshot([]) if suffix == ".snapshot" else None if suffix == ".txnindex" else b""
            yield name, file.read_bytes() if file.exists() else missing

    @cached_property
    def _epochs(self) -> str:
        file = self._log.with_name("leader-epoch-checkpoint")
        return file.read_text() if file.exists() else _EPOCHS

    def _manifest(self, stored: Sequence[int], sections: dict[str, int]) -> dict[str, Any]:
        name, start = parse_partition_dir(self._log.parent.name), int(self._log.stem)
        assert name is not None
        starts = dict(zip(sections, _running(sections.values()), strict=True))
        indexes = {each: {"position": starts[each], "size": size} for each, size in sections.items()}
        topic = {"topicId": self._writer.topic_id, "topicPartition": {"topic": name.topic, "partition": name.partition}}
        when = self._log.stat().st_mtime_ns // 1_000_000
        return {
            "version": "1",
            "chunkIndex": self._index(stored),
            "segmentIndexes": indexes,
            "compression": self._writer.compressed,
            **({} if self._writer.key is None else {"encryption": self._encryption(self._writer.key)}),
            "remoteLogSegmentMetadata": {
                "remoteLogSegmentId": {"topicIdPartition": topic, "id": self._id},
                "startOffset": start,
                "endOffset": self._end_offset - 1,
                "maxTimestampMs": when,
                "brokerId": 1,
                "eventTimestampMs": when,
                "segmentLeaderEpochs": _own_epochs(parse_leader_epochs(self._epochs, ""), start, self._end_offset),
            },
        }

    def _index(self, stored: Sequence[int]) -> dict[str, Any]:
        index = {"originalChunkSize": self._writer.chunk_bytes, "originalFileSize": self._log.stat().st_size}
        if self._writer.compressed:
            packed = zstandard.ZstdCompressor().compress(_sizes(stored))
            return {"type": "variable", **index, "transformedChunks": base64.b64encode(packed).decode()}
        full = self._writer.chunk_bytes + (0 if self._writer.key is None else 28)
        return {"type": "fixed", **index, "transformedChunkSize": full, "finalTransformedChunkSize": stored[-1]}

    def _encryption(self, key: RSAPrivateKey) -> dict[str, str]:
        wrapped = base64.b64encode(_wrapped(key, self._data_key)).decode()
        return {"dataKey": f"{KEY_ID}:{wrapped}", "aad": base64.b64encode(self._aad).decode()}


def new_key(file: Path) -> RSAPrivateKey:
    """A private key, written to a PEM file."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = rsa.generate_private_key(65537, 2048)
    file.write_bytes(key.private_bytes(*form))
    return key


def _wrapped(key: RSAPrivateKey, message: bytes) -> bytes:
    """RSA-OAEP with SHA3-512 (RFC 8017, 7.1.1)."""
    from hashlib import sha3_512

    numbers = key.public_key().public_numbers()
    size, digest = (numbers.n.bit_length() + 7) // 8, sha3_512().digest()
    data = digest + bytes(size - len(message) - 2 * len(digest) - 2) + b"\x01" + message
    seed = _CHANCE.randbytes(len(digest))
    masked = data_keys._xor(data, data_keys._mask(seed, len(data)))
    block = b"\x00" + data_keys._xor(seed, data_keys._mask(masked, len(seed))) + masked
    sealed: bytes = pow(int.from_bytes(block, "big"), numbers.e, numbers.n).to_bytes(size, "big")
    return sealed


def _sizes(stored: Sequence[int]) -> bytes:
    """See ``aiven_manifest``."""
    first = len(stored).to_bytes(4, "big")
    if len(stored) < 2:
        return first + b"".join(size.to_bytes(4, "big") for size in stored)
    base = min(stored[:-1])
    rows = b"".join((size - base).to_bytes(4, "big") for size in stored[:-1])
    return first + base.to_bytes(4, "big") + b"\x04" + rows + stored[-1].to_bytes(4, "big")


def end_offset(log: Path) -> int:
    """One past the last offset, by the headers of the batches."""
    at, end = 0, int(log.stem)
    with log.open("rb") as file:
        while len(head := file.read(_HEADER_BYTES)) == _HEADER_BYTES:
            end = int.from_bytes(head[:8], "big") + int.from_bytes(head[23:27], "big") + 1
            at += 12 + int.from_bytes(head[8:12], "big")
            file.seek(at)
    return end


def _own_epochs(epochs: Sequence[EpochEntry], start: int, end: int) -> dict[str, int]:
    """The leader epochs of the offsets ``[start, end)``."""
    ends = [*(each.start_offset for each in epochs[1:]), end]
    return {
        str(each.epoch): max(each.start_offset, start)
        for each, stop in zip(epochs, ends, strict=True)
        if stop > start and each.start_offset < end
    }


def _running(sizes: Any) -> Iterator[int]:
    at = 0
    for size in sizes:
        yield at
        at += size
