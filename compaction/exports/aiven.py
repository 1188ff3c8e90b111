"""The layout of Aiven's tiered storage plugin: ``<topic>-<topicId>/<partition>/<start offset>-<segment id><suffix>``.

``.log`` has the segment in chunks, each compressed, encrypted, both or neither; ``.indexes`` has the offset index, the time
index, the producer snapshot, the leader epochs and the transaction index, each encrypted if the segment is; ``.rsm-manifest``
has the positions of all these, and is written last. Objects without a manifest are an unfinished upload, or partly deleted, and
are ignored. Mirrors ``ObjectKeyFactory`` and ``KafkaRemoteStorageManager``, whose ``key.prefix`` may end within a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from threading import Lock
from typing import NamedTuple

from compaction.errors import CorruptLogError, StorageError
from compaction.exports import METADATA_ELSEWHERE, ExportLayout, LogFile, Place, StoredLog, StoredSegment, when_writing
from compaction.exports.aiven_objects import (
    SEAL_BYTES,
    AivenManifest,
    ChunkCoding,
    ChunkedObject,
    KeptBytes,
    decrypted,
    parse_manifest,
    require_size,
)
from compaction.exports.stored_segments import (
    TOPIC_AND_ID,
    directories,
    in_parallel,
    matching_directories,
    read_object,
    uploads_of,
)
from compaction.files.data_keys import data_key
from compaction.files.filesystem import FileRange, FileStat, ReadableFileSystem, base_name, join
from compaction.files.text_files import MAX_INDEX_BYTES
from compaction.formats.checkpoints import EpochEntry, parse_leader_epochs
from compaction.names import INDEX, LOG, SNAPSHOT, TIMEINDEX, TXNINDEX, TopicPartition
from compaction.screen.amounts import counted

#: the suffixes of a segment's objects beside ``.log``
INDEXES, MANIFEST = ".indexes", ".rsm-manifest"
_DIRECTORY = re.compile(TOPIC_AND_ID)
_FILE = re.compile(r"(?P<name>\d{20}-[A-Za-z0-9_-]{22})(?P<suffix>\.log|\.indexes|\.rsm-manifest)")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
#: the sections that are files of a log directory
SECTION_FILES = {"offset": INDEX, "timestamp": TIMEINDEX, "producerSnapshot": SNAPSHOT, "transaction": TXNINDEX}
EPOCHS = "leaderEpoch"
_HINT = "restore the object from another copy"
#: number of indexes that are fetched at a time; planning reads those of all segments in order
_FETCHED_INDEXES = 32
_FETCHED_BYTES = 16 << 20


class _Upload(NamedTuple):
    """The objects of one segment, ``path`` with each suffix."""

    path: str
    manifest: AivenManifest
    stats: Mapping[str, FileStat]

    def coding(self) -> ChunkCoding:
        """:raises UnsupportedLogError: the private key for its data key is missing"""
        encryption = self.manifest.encryption
        if encryption is None:
            return ChunkCoding(self.manifest.compressed)
        return ChunkCoding(self.manifest.compressed, data_key(encryption.data_key, self.path + MANIFEST), encryption.aad)


class AivenReader:
    """An export; ``place.prefix`` is the end of a ``key.prefix`` that ends within a name."""

    def __init__(self, place: Place) -> None:
        self._files, self._address, self._place, self._prefix = self._at = place
        self._indexes = _Indexes(place.files)

    def logs(self) -> Sequence[TopicPartition]:
        return sorted(self._directories)

    @cached_property
    def _directories(self) -> dict[TopicPartition, list[tuple[str, str]]]:
        found: dict[TopicPartition, list[tuple[str, str]]] = {}
        for match in matching_directories(self._at, _DIRECTORY):
            for name in directories(self._files, join(self._place, self._prefix + match[0])):
                if _PARTITION.fullmatch(name):
                    found.setdefault(TopicPartition(match["topic"], int(name)), []).append((f"{match[0]}/{name}", match["id"]))
        return found

    def stored(self, log: TopicPartition) -> StoredLog:
        topic_id, uploads, incomplete = uploads_of(self._at, self._directories.get(log, []), _FILE, [MANIFEST])
        complete = in_parallel(lambda upload: self._upload(*upload), [*uploads.items()])
        self._indexes.follow({upload.path + INDEXES: upload.stats[INDEXES].size for upload in complete})
        ignored = (counted(incomplete, "upload") + " without a manifest",) if incomplete else ()
        return StoredLog(tuple(map(self._segment, complete)), topic_id, ignored)

    def _upload(self, path: str, stats: Mapping[str, FileStat]) -> _Upload:
        manifest = parse_manifest(read_object(self._files, path + MANIFEST), path + MANIFEST)
        if f"{self._prefix}{manifest.name}" != "/".join(path.split("/")[-3:]):
            problem = f"is the manifest of another segment, {manifest.name}"
            raise CorruptLogError(problem, path=path + MANIFEST, hint="restore the manifest from another copy")
        for suffix in (LOG, INDEXES):
            if suffix not in stats:
                problem = f"is missing, and its manifest is there; it has offsets {manifest.start_offset} to"
                raise CorruptLogError(f"{problem} {manifest.end_offset - 1}", path=path + suffix, hint=_HINT)
        end = max(section.position + section.size for section in manifest.sections.values())
        require_size(path + INDEXES, stats[INDEXES], end)
        require_size(path + LOG, stats[LOG], manifest.chunks.stored_size)
        return _Upload(path, manifest, stats)

    def _segment(self, upload: _Upload) -> StoredSegment:
        manifest, stat, path = upload.manifest, upload.stats[LOG], upload.path + LOG
        plain = manifest.encryption is None and not manifest.compressed
        real = path if plain else join(self._address, path.removeprefix(join(self._place, "")))
        files = {LOG: LogFile(manifest.chunks.size, stat.mtime_ns, FileRange(real, 0, manifest.chunks.size))}
        for name, kind in SECTION_FILES.items():
            section = manifest.sections.get(name)
            if section is not None:
                size = section.size - (0 if manifest.encryption is None else SEAL_BYTES)
                files[kind] = LogFile(max(0, size), stat.mtime_ns, partial(self._section, upload, name))
        return StoredSegment(
            path,
            manifest.start_offset,
            manifest.end_offset,
            files,
            manifest.epochs,
            partial(self._lineage, upload),
            manifest.written_ms,
            end_is_stated=True,
            name=base_name(upload.path),
        )

    def _section(self, upload: _Upload, name: str) -> bytes:
        path, section = upload.path + INDEXES, upload.manifest.sections[name]
        if not section.size:
            return b""
        data = self._indexes.read(path)[section.position : section.position + section.size]
        if len(data) < section.size:
            raise CorruptLogError(f"section {name} is missing", path=path, position=section.position, hint=_HINT)
        return decrypted(data, upload.coding(), path, section.position, f"section {name}")

    def _lineage(self, upload: _Upload) -> tuple[EpochEntry, ...]:
        path = upload.path + INDEXES
        try:
            text = self._section(upload, EPOCHS).decode()
        except UnicodeDecodeError:
            position = upload.manifest.sections[EPOCHS].position
            raise CorruptLogError("the leader epochs are not text", path=path, position=position, hint=_HINT) from None
        return tuple(parse_leader_epochs(text, path))

    def segment(self, within: str) -> StoredSegment:
        """The segment whose log has this path; ``LogError`` if it cannot be read."""
        return self._segment(self._upload_at(within))

    def open(self, within: str) -> ChunkedObject:
        upload = self._upload_at(within)
        return ChunkedObject(self._files, upload.path + LOG, upload.stats[LOG], upload.manifest.chunks, upload.coding())

    def _upload_at(self, within: str) -> _Upload:
        """The upload whose log has this path."""
        path = join(self._place, within)
        stem = path.removesuffix(LOG)
        stats = {suffix: self._files.stat(stem + suffix) for suffix in (LOG, INDEXES)}
        present = {suffix: stat for suffix, stat in stats.items() if stat is not None}
        if stem == path or LOG not in present:
            raise StorageError("no such object", path=path, hint=_HINT)
        return self._upload(stem, present)


class _Indexes:
    """The ``.indexes`` objects of a log. Planning reads all of them, so each is fetched with the following ones."""

    def __init__(self, files: ReadableFileSystem) -> None:
        self._files, self._kept = files, KeptBytes(2 * _FETCHED_BYTES)
        self._order: dict[str, list[str]] = {}
        self._lock = Lock()

    def follow(self, sizes: Mapping[str, int]) -> None:
        """Remember the order of a log's and their sizes."""
        paths = list(sizes)
        for number, path in enumerate(paths):
            later = paths[number : number + _FETCHED_INDEXES]
            ends = accumulate(sizes[following] for following in later)
            self._order[path] = [following for following, end in zip(later, ends, strict=True) if end <= _FETCHED_BYTES]

    def read(self, path: str) -> bytes:
        with self._lock:
            data = self._kept.get(path)
            if data is None:
                missing = [path, *(name for name in self._order.get(path, ())[1:] if self._kept.get(name) is None)]
                fetched = in_parallel(lambda name: read_object(self._files, name, MAX_INDEX_BYTES), missing)
                # the requested one last: it is kept in any case
                for name, data in reversed([*zip(missing, fetched, strict=True)]):
                    self._kept.put(name, data)
                data = fetched[0]
            return data


LAYOUT = ExportLayout(
    "tiered storage",
    AivenReader,
    when_writing("compaction.exports.aiven_writer:aiven_target"),
    METADATA_ELSEWHERE,
    is_tiered=True,
    encrypts=True,
)
