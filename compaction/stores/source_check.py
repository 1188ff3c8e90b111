"""Holds what a run reads from an output in an object store against the output's manifest.

* No manifest and no marker: somebody's own upload; nothing is known of its objects, and nothing is checked.
* A marker, unless it is that of the run that wrote the manifest: the output is unfinished, and is refused.
* A manifest: its objects are there with the listed sizes. An object whose name means something to a broker and that is not
  listed is an error; any other is not seen at all (late uploads of tasks that were killed).
* Where an object is opened, its ETag is the listed one; stores give it with the answer that opens an object. A copy of an
  output in another place may have other ETags, which prove nothing there.
* An object that is read from its start to its end has the listed content hash.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import xxhash

from compaction.errors import CompactionError, CorruptLogError, StorageError
from compaction.fs.filesystem import FileStat, base_name, join, parent
from compaction.names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    parse_partition_dir,
    parse_segment_file,
)
from compaction.stores.clients import located, remote_errors
from compaction.stores.listings import object_stat, stat_objects_if_allowed
from compaction.stores.manifest import MANIFEST, MARKER, Content, Entry, Manifest, run_of

#: how long a task takes a manifest for unchanged
_MAX_AGE_S = 10.0
_METADATA_SNAPSHOT = re.compile(r"\d{20}-\d{10}\.checkpoint")
_MEANINGFUL = frozenset(
    (
        CLEAN_SHUTDOWN,
        CLEANER_OFFSETS,
        HIGH_WATERMARKS,
        LEADER_EPOCHS,
        LOG_STARTS,
        META_PROPERTIES,
        PARTITION_METADATA,
        RECOVERY_POINTS,
    )
)
_AGAIN = "copy it again from where it was written, or run the job that wrote it again into an empty place"
_UNFINISHED = "this output is unfinished: the run that writes it was stopped, or is still at work"
#: a user that addresses of gs: may name, and need not
_NOBODY = "gs://anonymous@"


class Governing(NamedTuple):
    """The manifest that lists the files of a directory; ``within`` is the directory's path relative to ``root``."""

    manifest: Manifest
    root: str
    within: str

    @property
    def original(self) -> bool:
        """Whether the output lies where it was written."""
        place = self.manifest.place
        return place is None or place.replace(_NOBODY, "gs://") == self.root.replace(_NOBODY, "gs://")

    def entry(self, name: str) -> Entry | None:
        """A file in the directory.

        :raises CorruptLogError: it should not be there
        """
        found = self.manifest.files_in(self.within).get(name)
        if found is None and is_meaningful(name):
            path = join(self.root, *filter(None, (self.within, name)))
            hint = f"remove it if it is of no use; else {_AGAIN}"
            raise CorruptLogError(f"is there, {MANIFEST} does not list it", path=path, hint=hint)
        return found


class Listing(NamedTuple):
    """What lies in a directory, as listed in its manifest; ``fault`` is what is wrong with the first file that is not so."""

    entries: dict[str, FileStat]
    fault: CompactionError | None = None


#: says what is wrong with a file, if anything: found, expected
Compare = Callable[[Entry, bool], "tuple[str, str] | None"]


class Sources:
    """The manifests of the places that are read, each read once, or anew after ``max_age_s``."""

    def __init__(self, max_age_s: float = math.inf) -> None:
        self._max_age_s = max_age_s
        self._known: dict[str, tuple[float, list[FileStat | None], Manifest | None]] = {}

    def manifest(self, root: str) -> Manifest | None:
        """The manifest of the output at ``root``, if one is there.

        :raises StorageError: the output is unfinished, or the store refused
        :raises CorruptLogError: the manifest is malformed
        """
        known = self._known.get(root)
        if known is not None and time.monotonic() - known[0] <= self._max_age_s:
            return known[2]
        paths = [join(root, MANIFEST), join(root, MARKER)]
        found = stat_objects_if_allowed(paths)
        manifest = known[2] if known is not None and known[1] == found else _read(root, found)
        self._known[root] = time.monotonic(), found, manifest
        return manifest

    def governing(self, directory: str) -> Governing | None:
        """The manifest that speaks of a directory's files: its own, its log directory's, or that of an output of several."""
        outer = parent(directory)
        # an output of several log directories lists them; what it does not list may be another's
        candidates: list[tuple[str, str | None]] = [(directory, None), (outer, directory)]
        if parse_partition_dir(base_name(directory)) is not None:
            candidates = [(outer, directory), (directory, None), (parent(outer), outer), (outer, None)]
        for root, listed in candidates:
            manifest = self.manifest(root)
            if manifest is not None and (listed is None or manifest.has_directory(listed[len(root) + 1 :])):
                return Governing(manifest, root, directory[len(root) + 1 :])
        return None

    def check_listing(self, directory: str, found: Mapping[str, FileStat]) -> Listing:
        """What a listing of ``directory`` shows, held against its manifest; times are those of the manifest.

        Names that are missing are there all the same, so that whoever looks at them is told.
        """
        entries = {name: stat for name, stat in found.items() if name not in (MANIFEST, MARKER, "")}
        governing = self.governing(directory)
        if governing is None:
            return Listing(entries)
        files = {name: stat for name, stat in entries.items() if stat.is_file}
        listed = governing.manifest.files_in(governing.within)
        made = {name: object_stat(0, 0, is_dir=True) for name in governing.manifest.directories_in(governing.within)}
        made |= {name: stat for name, stat in entries.items() if not stat.is_file or is_meaningful(name)}
        made |= {name: object_stat(each.size, each.mtime_ms * 1_000_000, is_dir=False) for name, each in listed.items()}
        return Listing(made, next(_faults(governing, directory, files), None))

    def entry(self, path: str) -> tuple[Entry, bool] | None:
        """What a manifest lists of a file, and whether its ETag is that of this place; nothing of what a task writes, which no
        manifest lists and which is read back while its output is unfinished.

        :raises StorageError: the output is unfinished, or the store refused
        :raises CorruptLogError: the file is not listed and should not be there
        """
        file = parse_segment_file(base_name(path))
        if file is not None and file.suffix:
            return None
        governing = self.governing(parent(path))
        entry = None if governing is None else governing.entry(base_name(path))
        return None if governing is None or entry is None else (entry, governing.original)

    def check_opened(self, path: str, size: int, etag: str | None) -> None:
        """Check what a store says of an object as it is opened.

        :raises CorruptLogError: the object is not the one that was written
        """

        def compare(entry: Entry, original: bool) -> tuple[str, str] | None:
            if size != entry.size:
                return _sizes(size, entry)
            if original and None not in (etag, entry.etag) and etag != entry.etag:
                return f"has ETag {etag}", f"{entry.etag}"
            return None

        self._check(path, compare)

    def check_content(self, path: str, content: Content) -> None:
        """Check the bytes of an object that was read from its start to its end.

        :raises CorruptLogError: they are not those that were written
        """

        def compare(entry: Entry, _: bool) -> tuple[str, str] | None:
            if content.size_bytes != entry.size:
                return _sizes(content.size_bytes, entry)
            if entry.xxh3_128 not in (None, content.xxh3_128):
                return f"has content hash {content.xxh3_128}", f"{entry.xxh3_128}"
            return None

        self._check(path, compare)

    def _check(self, path: str, compare: Compare) -> None:
        listed = self.entry(path)
        problem = None if listed is None else compare(*listed)
        if problem is not None and self._max_age_s < math.inf:
            # another output may have taken the place of the one that is remembered
            self._known.clear()
            listed = self.entry(path)
            problem = None if listed is None else compare(*listed)
        if problem is not None:
            raise _fault(path, *problem)


#: of the tasks of a process, which come and go
_shared = Sources(_MAX_AGE_S)


def shared() -> Sources:
    """The manifests of the places that this process reads, at most some seconds old."""
    return _shared


def content_of(data: bytes) -> Content:
    """The content that a manifest has of a file's bytes."""
    return Content(len(data), xxhash.xxh3_128_hexdigest(data))


def _read(root: str, found: list[FileStat | None]) -> Manifest | None:
    done, begun = found
    path = join(root, MANIFEST)
    manifest = None if done is None else Manifest.parse(_bytes(path), path)
    if begun is None:
        return manifest
    if manifest is None or run_of(_bytes(join(root, MARKER))) != manifest.run:
        hint = "run the job that writes it again"
        if manifest is not None and manifest.run is None:
            hint += f", or remove {MARKER} if no run is at work there"
        raise StorageError(_UNFINISHED, path=root, hint=hint)
    return manifest


def _bytes(path: str) -> bytes:
    store, key = located(path)
    with remote_errors(path, "read"), store.open_input_stream(key, compression=None) as stream:
        data: bytes = stream.read()
    return data


def _faults(governing: Governing, directory: str, files: Mapping[str, FileStat]) -> Iterator[CompactionError]:
    """What is wrong with the files directly in a directory, by their listing."""
    listed = governing.manifest.files_in(governing.within)
    for name, entry in sorted(listed.items()):
        if name not in files:
            yield _fault(join(directory, name), "is missing", f"{entry.size} bytes")
        elif files[name].size != entry.size:
            yield _fault(join(directory, name), *_sizes(files[name].size, entry))
    for name in sorted(files.keys() - listed.keys()):
        try:
            governing.entry(name)
        except CorruptLogError as error:
            yield error


def _sizes(size: int, entry: Entry) -> tuple[str, str]:
    return f"has {size} bytes", f"{entry.size}"


def _fault(path: str, found: str, expected: str) -> CorruptLogError:
    return CorruptLogError(f"{found}, {MANIFEST} lists it with {expected}", path=path, hint=_AGAIN)


def is_meaningful(name: str) -> bool:
    """Whether a file of this name, if it is there, changes what a broker or a run makes of a log directory."""
    file = parse_segment_file(name)
    return name in _MEANINGFUL or (file is not None and not file.suffix) or _METADATA_SNAPSHOT.fullmatch(name) is not None
