"""Writes segments in the layout of Aiven's tiered storage plugin; see ``aiven``.

A segment that the plugin has uploaded is written in the form of the upload: with its chunk size, compression and encryption,
and a new data key that is wrapped for the same private key. The new manifest takes over the segment's metadata. Any other
segment is written plain. The manifest is written last.

Mirrors ``KafkaRemoteStorageManager.copyLogSegmentData``, ``TransformFinisher`` and ``ChunkSizesBinaryCodec`` (commit 8fb1581).
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from threading import Lock
from typing import Any

import numpy as np
import xxhash
import zstandard

from compaction.errors import CorruptLogError, UnsupportedLogError
from compaction.exports import Place, TargetOptions
from compaction.exports.aiven import EPOCHS, INDEXES, LAYOUT, MANIFEST, SECTION_FILES, AivenReader
from compaction.exports.aiven_objects import (
    SEAL_BYTES,
    SECTIONS,
    ChunkCoding,
    ChunkedObject,
    encoded,
    encrypted,
    parse_manifest,
)
from compaction.exports.new_export import NewExport
from compaction.exports.stored_segments import read_object
from compaction.exports.tiered_writer import TieredTarget, tiered_source, tiered_target
from compaction.exports.uploads import SegmentContent, Upload
from compaction.files.contents import READ_BYTES, read_back_error
from compaction.files.data_keys import DATA_KEY_BYTES, new_data_key
from compaction.files.filesystem import join
from compaction.files.mixed import MixedFileSystem
from compaction.formats.checkpoints import format_leader_epochs
from compaction.formats.indexes import TIME_INDEX
from compaction.names import LOG, TIMEINDEX

#: the plugin's default of ``chunk.size``
CHUNK_BYTES = 4 << 20
#: segments with larger chunks are encoded one at a time
_LARGE_BYTES = 8 << 20
_NO_TIMESTAMP, _NO_BROKER = -1, -1
_PLAIN = ChunkCoding(compressed=False)


class AivenForm:
    """Chunks in ``.log``, sections in ``.indexes``, and a manifest.

    :param like_source: the source has this layout, too
    """

    def __init__(self, *, like_source: bool) -> None:
        self._like_source, self._files, self._large = like_source, MixedFileSystem(), Lock()

    def directory(self, upload: Upload) -> str:
        return f"{upload.log.topic}-{upload.topic_id}/{upload.log.partition}"

    def write(self, export: NewExport, upload: Upload, content: SegmentContent, now_ms: int) -> None:
        fields, chunk_bytes, coding = self._style(upload, content, now_ms)
        within = join(self.directory(upload), f"{upload.start_offset:020d}-{upload.segment_id}")
        stem = join(export.place, within)
        sizes: list[int] = []
        digest = xxhash.xxh3_128()
        plain = _sections(upload, content)
        sections = {name: encrypted(data, coding) if data else data for name, data in plain.items()}
        with self._large if chunk_bytes > _LARGE_BYTES else nullcontext():
            export.write(stem + LOG, _chunks(content.blocks(chunk_bytes), coding, sizes, digest))
            chunk_index = _chunk_index(content.size, chunk_bytes, coding, sizes)
            document = {**fields, "chunkIndex": chunk_index, "segmentIndexes": _positions(sections)}
            export.write(stem + INDEXES, [data for data in sections.values() if data])
            export.write(stem + MANIFEST, [json.dumps(document, separators=(",", ":")).encode()])
            decoded = None if coding == _PLAIN else digest.hexdigest()
            _require_readable(export, within + LOG, upload, content, plain, decoded)

    def _style(self, upload: Upload, content: SegmentContent, now_ms: int) -> tuple[dict[str, Any], int, ChunkCoding]:
        """The fields that the new manifest takes over, the size of a chunk, and the coding."""
        if upload.source is None or not self._like_source:
            return _new_manifest(upload, content, now_ms), CHUNK_BYTES, _PLAIN
        path = upload.source.path.removesuffix(LOG) + MANIFEST
        data = read_object(self._files, path)
        manifest = parse_manifest(data, path)
        document, coding = json.loads(data), ChunkCoding(manifest.compressed)
        if manifest.encryption is not None:
            key, wrapped = new_data_key(manifest.encryption.data_key, path)
            coding = ChunkCoding(manifest.compressed, key, secrets.token_bytes(DATA_KEY_BYTES))
            document["encryption"] = {"dataKey": wrapped, "aad": base64.b64encode(coding.aad).decode()}
        return document, manifest.chunks.chunk_bytes, coding


def aiven_target(options: TargetOptions) -> TieredTarget:
    return tiered_target("aiven", options, AivenForm(like_source=tiered_source(options) is LAYOUT))


def encode_sizes(sizes: Sequence[int]) -> bytes:
    """The list of chunk sizes; ``decode_sizes`` reads it."""
    count, last = len(sizes).to_bytes(4, "big"), b"".join(size.to_bytes(4, "big") for size in sizes[-1:])
    if len(sizes) < 2:
        return count + last
    values = np.array(sizes[:-1], np.int64)
    base = int(values.min())
    width = max(1, -(-(int(values.max()) - base).bit_length() // 8))
    digits = (values - base).astype(">i8").view(np.uint8).reshape(len(values), 8)[:, 8 - width :]
    return count + base.to_bytes(4, "big") + bytes([width]) + digits.tobytes() + last


def _require_readable(
    export: NewExport,
    within: str,
    upload: Upload,
    content: SegmentContent,
    sections: dict[str, bytes | None],
    decoded: str | None,
) -> None:
    """Read a segment back as a reader does: by its manifest, with the data key in it.

    :param sections: before encryption
    :param decoded: the content hash of its log, if that is encoded
    :raises StorageError: it differs from the written segment
    """
    layout, size, problem = AivenReader(Place(export.files, "", export.place)), content.size, ""
    # plain bytes were read back already: check only that the last chunk is at the manifest's position
    start = 0 if decoded is not None else max(0, size - CHUNK_BYTES)
    expected = decoded or xxhash.xxh3_128_hexdigest(content.read(start, size - start))
    try:
        segment = layout.segment(within)
        files = segment.files
        if (segment.start_offset, segment.end_offset, files[LOG].size) != (upload.start_offset, upload.end_offset, size):
            offsets = f"offsets {segment.start_offset} to {segment.end_offset - 1}"
            problem = f"its manifest has {offsets} and {files[LOG].size} bytes"
        elif _decoded(layout.open(within), start) != expected:
            problem = "it is decoded to other bytes than were encoded"
        for name, kind in SECTION_FILES.items() if not problem else ():
            if (files[kind].load() if kind in files else None) != sections[name]:
                problem = problem or f"section {name} has other bytes than were encoded"
        lineage = () if problem or segment.lineage is None else segment.lineage()
        if not problem and format_leader_epochs(lineage).encode() != sections[EPOCHS]:
            problem = "it has other leader epochs"
    except (CorruptLogError, UnsupportedLogError) as error:
        problem = f"it cannot be decoded: {error.message}"
    if problem:
        raise read_back_error(join(export.place, within), problem)


def _decoded(log: ChunkedObject, start: int) -> str:
    """The content hash of a log from a byte on."""
    content, buffer, position = xxhash.xxh3_128(), memoryview(bytearray(READ_BYTES)), start
    with closing(log.sequential(start, log.size())) as source:
        while count := source.pread(buffer, position):
            content.update(buffer[:count])
            position += count
    return content.hexdigest()


def _chunks(blocks: Iterator[bytes], coding: ChunkCoding, sizes: list[int], digest: xxhash.xxh3_128) -> Iterator[bytes]:
    """The stored chunks; appends their sizes to ``sizes`` and adds the plain bytes to ``digest``."""
    for block in blocks:
        digest.update(block)
        chunk = encoded(block, coding)
        sizes.append(len(chunk))
        yield chunk


def _chunk_index(size: int, chunk_bytes: int, coding: ChunkCoding, sizes: Sequence[int]) -> dict[str, Any]:
    common = {"originalChunkSize": chunk_bytes, "originalFileSize": size}
    if coding.compressed:
        packed = zstandard.ZstdCompressor().compress(encode_sizes(sizes))
        return {"type": "variable", **common, "transformedChunks": base64.b64encode(packed).decode()}
    overhead = 0 if coding.key is None else SEAL_BYTES
    stored = {"transformedChunkSize": chunk_bytes + overhead, "finalTransformedChunkSize": sizes[-1]}
    return {"type": "fixed", **common, **stored}


def _sections(upload: Upload, content: SegmentContent) -> dict[str, bytes | None]:
    """The sections of ``.indexes`` by name; ``None`` without a transaction index. None is compressed."""
    contents: dict[str, bytes | None] = {name: content.indexes.get(kind) for name, kind in SECTION_FILES.items()}
    contents |= {"producerSnapshot": upload.snapshot(), EPOCHS: format_leader_epochs(upload.lineage()).encode()}
    return {name: contents[name] for name in SECTIONS}


def _positions(sections: dict[str, bytes | None]) -> dict[str, Any]:
    positions: dict[str, Any] = {}
    position = 0
    for name, data in sections.items():
        positions[name] = None if data is None else {"position": position, "size": len(data)}
        position += len(data or b"")
    return positions


def _new_manifest(upload: Upload, content: SegmentContent, now_ms: int) -> dict[str, Any]:
    """The fields of the manifest of a segment that the plugin did not upload."""
    times = TIME_INDEX.read(content.indexes[TIMEINDEX], upload.start_offset)
    partition = {"topicId": upload.topic_id, "topicPartition": upload.log._asdict()}
    segment = {
        "remoteLogSegmentId": {"topicIdPartition": partition, "id": upload.segment_id},
        "startOffset": upload.start_offset,
        "endOffset": upload.end_offset - 1,
        "maxTimestampMs": int(times["timestamp"][-1]) if len(times) else _NO_TIMESTAMP,
        "brokerId": _NO_BROKER,
        "eventTimestampMs": now_ms,
        "segmentLeaderEpochs": {str(entry.epoch): entry.start_offset for entry in upload.epochs},
    }
    head = {"version": "1", "chunkIndex": None, "segmentIndexes": None, "compression": False}
    return {**head, "remoteLogSegmentMetadata": segment}
