"""The objects of a backup set: the manifest, and the segments' objects, which are compared with it."""

from __future__ import annotations

from typing import NamedTuple

from compaction.errors import CorruptLogError, StorageError
from compaction.formats.backup import MANIFEST, BackupManifest, BackupSegment, SegmentHeader, parse_manifest
from compaction.formats.primitives import FormatError
from compaction.storage.filesystem import ReadableFileSystem, join
from compaction.storage.text_files import read_small

#: bounds memory; a manifest has about 600 bytes for each segment, and a backup begins one for each partition and minute
MAX_MANIFEST_BYTES = 1 << 30
HINT = "restore the object from another copy of the set"


class SegmentObject(NamedTuple):
    """A segment's object: its size, and its entry in the manifest."""

    path: str
    size: int
    mtime_ns: int
    start_offset: int
    end_offset: int
    record_count: int
    sha256: str
    #: of its records; 0 if it is not known
    plain_bytes: int


def read_manifest(files: ReadableFileSystem, place: str) -> BackupManifest:
    """The manifest of the set in a directory.

    :raises StorageError: there is none
    :raises CorruptLogError: it is malformed
    """
    path = join(place, MANIFEST)
    if files.stat(path) is None:
        inner = [name for name in files.listdir(place) if files.stat(join(place, name, MANIFEST)) is not None]
        hint = f"give one of the sets below it, e.g. {join(place, inner[0])}" if inner else "give the directory of one set"
        raise StorageError(f"no backup set here: it has no {MANIFEST}", path=place, hint=hint)
    try:
        return parse_manifest(read_small(files, path, HINT, MAX_MANIFEST_BYTES))
    except FormatError as error:
        raise CorruptLogError(error.message, path=path, position=error.position, hint=HINT) from error


def stored_segment(files: ReadableFileSystem, place: str, segment: BackupSegment) -> SegmentObject:
    """The object of a segment.

    :raises CorruptLogError: it is missing, or its size is not the manifest's
    """
    path = join(place, segment.key)
    offsets = f"offsets {segment.start_offset} to {segment.end_offset}"
    status = files.stat(path)
    if status is None:
        raise CorruptLogError(f"segment is missing; the manifest says that it has {offsets}", path=path, hint=HINT)
    if segment.compressed_size and status.size != segment.compressed_size:
        problem = f"segment of {offsets} has {status.size} bytes, {segment.compressed_size} in the manifest"
        raise CorruptLogError(problem, path=path, hint=HINT)
    return SegmentObject(
        path,
        status.size,
        status.mtime_ns,
        segment.start_offset,
        segment.end_offset,
        segment.record_count,
        segment.sha256,
        segment.uncompressed_size,
    )


def check_header(stored: SegmentObject, header: SegmentHeader) -> None:
    """:raises FormatError: the header and the manifest differ"""
    in_header = (header.record_count, header.start_offset, header.end_offset)
    in_manifest = (stored.record_count, stored.start_offset, stored.end_offset)
    if in_header != in_manifest:
        text = "{} records at offsets {} to {}"
        raise FormatError(f"segment has {text.format(*in_header)}, {text.format(*in_manifest)} in the manifest", 8)


def damaged(stored: SegmentObject, error: FormatError) -> CorruptLogError:
    """The error of a segment, with its offsets. Positions behind the header count from the first record's plain bytes."""
    problem = f"{error.message}; the segment has offsets {stored.start_offset} to {stored.end_offset}"
    return CorruptLogError(problem, path=stored.path, position=error.position, hint=HINT)
