"""Objects of several chunks that are damaged, or differ from their manifests: each error names the object and its bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.errors import CorruptLogError
from compaction.files import contents
from compaction.files.calls import KEYS_VARIABLE
from compaction.files.contents import read_range
from compaction.files.filesystem import FileRange, join
from compaction.files.local import LocalFileSystem
from compaction.files.mixed import MixedFileSystem
from compaction.files.segment_file import SegmentReader
from compaction.files.uri import parse_uri
from tests.files.layouts.aiven_objects import KEY_ID, AivenWriter, new_key
from tests.files.layouts.exports import aiven, no_exports_known, require_cryptography
from tests.files.remote_places import PLACE, bucket
from tests.log.logs import build, data_batch

__all__ = ["bucket", "no_exports_known"]

CHUNK_BYTES = 100
SEALED_BYTES = CHUNK_BYTES + 28


class Export:
    """One segment in chunks of 100 bytes, the last one smaller."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, compressed: bool, encrypted: bool) -> None:
        if encrypted:
            require_cryptography()
            monkeypatch.setenv(KEYS_VARIABLE, f"{KEY_ID}={tmp_path}/key.pem")
        log = tmp_path / "orders-0"
        log.mkdir()
        build(0, [data_batch(offset) for offset in range(11)]).put(LocalFileSystem(), str(log))
        self.log = (log / f"{0:020d}.log").read_bytes()
        key = new_key(tmp_path / "key.pem") if encrypted else None
        AivenWriter(compressed=compressed, key=key, chunk_bytes=CHUNK_BYTES).write(log, tmp_path / "export")
        (self.object,) = (tmp_path / "export").rglob("*.log")
        self.count = -(-len(self.log) // CHUNK_BYTES)
        self._manifest = self.object.with_suffix(".rsm-manifest")
        self.address = aiven(tmp_path / "export")

    def change_index(self, **values: Any) -> None:
        """Change what the manifest says of the chunks."""
        document = json.loads(self._manifest.read_text())
        document["chunkIndex"].update(values)
        self._manifest.write_text(json.dumps(document))

    def change(self, at: int, data: bytes) -> None:
        """Overwrite bytes of the object."""
        stored = bytearray(self.object.read_bytes())
        stored[at : at + len(data)] = data
        self.object.write_bytes(stored)

    def cut(self, size_bytes: int) -> None:
        """Truncate the object."""
        self.object.write_bytes(self.object.read_bytes()[:size_bytes])

    def segment(self) -> FileRange:
        """Where tasks find the log."""
        found = MixedFileSystem().real_path(join(self.address, "orders-0", f"{0:020d}.log"))
        assert found is not None
        return found


def read(segment: FileRange, files: MixedFileSystem | None = None) -> bytes:
    """A log, as a task reads it."""
    return b"".join(map(bytes, read_range(files or MixedFileSystem(), segment)))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("encrypted", [False, True])
def test_all_chunks_are_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool, encrypted: bool) -> None:
    export = Export(tmp_path, monkeypatch, compressed=compressed, encrypted=encrypted)
    assert len(export.log) > 5 * CHUNK_BYTES
    segment = export.segment()
    assert read(segment) == export.log
    for start in (0, 99, 100, 250):
        assert read(FileRange(segment.path, start, 333)) == export.log[start : start + 333]


@pytest.mark.parametrize("block_bytes", [120, 150, 210])
def test_batches_across_chunks_are_read_again_from_a_store(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    """The next block begins in the chunk before, whose range of the object was read ahead earlier."""
    monkeypatch.setattr(contents, "_RANGE_BYTES", 60)
    export = Export(tmp_path, monkeypatch, compressed=True, encrypted=False)
    (tmp_path / "export").rename(bucket / "export")
    address = parse_uri(f"aiven+{PLACE}/export", "--log-dir")
    segment = MixedFileSystem().real_path(f"{address}/orders-0/{0:020d}.log")
    assert segment is not None
    with SegmentReader(MixedFileSystem(), segment.path, 0, segment.size, block_bytes=block_bytes) as reader:
        assert b"".join(block.raw.tobytes() for block in reader.blocks(check_crc=True)) == export.log


#: what happened to an export; is it encrypted, else it is compressed; the byte and the text of the error
Fault = tuple[Callable[[Export], None], bool, int, str]
FAULTS: dict[str, Fault] = {
    "a byte of a chunk differs": (
        lambda export: export.change(2 * SEALED_BYTES + 40, b"\0\0\0"), True, 2 * SEALED_BYTES,
        "chunk 2, bytes 256 to 383: the authentication tag does not match",
    ),
    "the IV of a chunk differs": (
        lambda export: export.change(SEALED_BYTES, b"\0\0\0\0"), True, SEALED_BYTES,
        "chunk 1, bytes 128 to 255: the authentication tag does not match",
    ),
    "a chunk is missing": (
        lambda export: export.cut(3 * SEALED_BYTES), True, 3 * SEALED_BYTES, r"has 384 bytes, its manifest lists \d+",
    ),
    "the manifest says that chunks are smaller": (
        lambda export: export.change_index(
            transformedChunkSize=SEALED_BYTES - 1,
            finalTransformedChunkSize=export.object.stat().st_size - (export.count - 1) * (SEALED_BYTES - 1),
        ), True, 0, "chunk 0, bytes 0 to 126: the authentication tag does not match",
    ),
    "the manifest says that the log is larger": (
        lambda export: export.change_index(originalFileSize=len(export.log) + 1), True, -1,
        r"chunk \d+, bytes \d+ to \d+: has \d+ bytes of the log, the manifest says \d+",
    ),
    "the manifest has chunks for fewer bytes": (
        lambda export: export.change_index(originalFileSize=len(export.log) - CHUNK_BYTES), True, -1,
        r"has \d+ bytes, its manifest lists \d+",
    ),
    "a compressed chunk is damaged": (
        lambda export: export.change(0, bytes(8)), False, 0, r"chunk 0, bytes 0 to \d+: cannot be decompressed",
    ),
    "the manifest says that compressed chunks have fewer bytes": (
        lambda export: export.change_index(originalChunkSize=CHUNK_BYTES - 1, originalFileSize=len(export.log) - 5), False, 0,
        r"chunk 0, bytes 0 to \d+: has 100 bytes of the log, the manifest says 99",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_names_the_object_and_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    change, encrypted, position, told = FAULTS[fault]
    export = Export(tmp_path, monkeypatch, compressed=not encrypted, encrypted=encrypted)
    change(export)
    with pytest.raises(CorruptLogError, match=told) as error:
        read(export.segment())
    assert error.value.path == str(export.object)
    assert error.value.position == position or position < 0 <= (error.value.position or 0)


def test_an_object_that_is_truncated_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export, task = Export(tmp_path, monkeypatch, compressed=False, encrypted=True), MixedFileSystem()
    segment = export.segment()
    assert task.stat(segment.path) is not None
    export.cut(400)
    with pytest.raises(CorruptLogError, match="chunk 3, bytes 384 to 511: the object ends at byte 400") as error:
        read(segment, task)
    assert (error.value.path, error.value.position) == (str(export.object), 400)
