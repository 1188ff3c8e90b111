"""Compares what a run reads from an output in an object store with the output's manifest.

* No manifest and no marker: not an output of this program; nothing is checked.
* A marker, unless of the run that wrote the manifest: the output is unfinished and is refused.
* A manifest: all listed objects must exist with the listed sizes. An unlisted object is an error if its name is significant to
  a broker; others are ignored (late uploads of killed tasks).
* An opened object must have the listed ETag, which stores return on opening. A copy of an output under another URI may have
  other ETags, so they are not compared there.
* An object read from start to end must have the listed content hash.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from compaction.errors import CompactionError, CorruptLogError, StorageError
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
from compaction.storage.filesystem import FileStat, base_name, join, parent
from compaction.storage.listings import object_stat, read_whole, stat_objects_if_allowed
from compaction.storage.manifest import MANIFEST, MARKER, Entry, Folder, Manifest, run_of

#: how long a task caches a manifest
_MAX_AGE_S = 10.0
_METADATA_SNAPSHOT = re.compile(r"\d{20}-\d{10}\.checkpoint")
_SIGNIFICANT = frozenset(
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
_AGAIN = "copy the output again, or repeat the run that wrote it with an empty output directory"
_UNFINISHED = "this output is unfinished: the run that writes it was stopped, or is still running"
#: the optional user of a gs: URI
_ANONYMOUS = "gs://anonymous@"


class Governing(NamedTuple):
    """The manifest that applies to a directory; ``within`` is the directory's path relative to ``root``."""

    manifest: Manifest
    root: str
    within: str

    @property
    def original(self) -> bool:
        """Whether the output still has the URI to which it was written."""
        place = self.manifest.place
        return place is None or place.replace(_ANONYMOUS, "gs://") == self.root.replace(_ANONYMOUS, "gs://")

    @property
    def folder(self) -> Folder:
        """The files and directories that the manifest lists directly in the directory."""
        return self.manifest.folders.get(self.within) or Folder({}, set())

    def entry(self, name: str) -> Entry | None:
        """The entry of a file in the directory.

        :raises CorruptLogError: a significant file is not listed
        """
        entry = self.folder.files.get(name)
        if entry is None and is_significant(name):
            path = join(self.root, *filter(None, (self.within, name)))
            hint = f"remove it if it is not needed; otherwise {_AGAIN}"
            raise CorruptLogError(f"exists, but is not listed in {MANIFEST}", path=path, hint=hint)
        return entry


class Listing(NamedTuple):
    """The entries of a directory by its manifest; ``fault`` is the first mismatch found."""

    entries: dict[str, FileStat]
    fault: CompactionError | None = None


class Manifests:
    """The manifests of the directories that are read, cached for ``max_age_s``."""

    def __init__(self, max_age_s: float = math.inf) -> None:
        self._max_age_s = max_age_s
        self._known: dict[str, tuple[float, list[FileStat | None], Manifest | None]] = {}

    def manifest(self, root: str) -> Manifest | None:
        """The manifest of the output at ``root``, if any.

        :raises StorageError: the output is unfinished, or the store refused
        :raises CorruptLogError: the manifest is malformed
        """
        known = self._known.get(root)
        if known is not None and time.monotonic() - known[0] <= self._max_age_s:
            return known[2]
        paths = [join(root, MANIFEST), join(root, MARKER)]
        stats = stat_objects_if_allowed(paths)
        manifest = known[2] if known is not None and known[1] == stats else _read(root, stats)
        self._known[root] = time.monotonic(), stats, manifest
        return manifest

    def governing(self, directory: str) -> Governing | None:
        """The manifest that applies to a directory: its own, its log directory's, or that of an output of several of these."""
        outer = parent(directory)
        # an output of several log directories lists them; an unlisted directory may belong to another output
        candidates: list[tuple[str, str | None]] = [(directory, None), (outer, directory)]
        if parse_partition_dir(base_name(directory)) is not None:
            candidates = [(outer, directory), (directory, None), (parent(outer), outer), (outer, None)]
        for root, listed in candidates:
            manifest = self.manifest(root)
            if manifest is not None and (listed is None or listed[len(root) + 1 :] in manifest.folders):
                return Governing(manifest, root, directory[len(root) + 1 :])
        return None

    def check_listing(self, directory: str, stats: Mapping[str, FileStat]) -> Listing:
        """A listing of ``directory``, compared with its manifest; modification times are those of the manifest.

        Missing files are included, so that access to them raises the fault.
        """
        entries = {name: stat for name, stat in stats.items() if name not in (MANIFEST, MARKER, "")}
        governing = self.governing(directory)
        if governing is None:
            return Listing(entries)
        files = {name: stat for name, stat in entries.items() if stat.is_file}
        listed, folders = governing.folder
        made = {name: object_stat(0, 0, is_dir=True) for name in folders}
        made |= {name: stat for name, stat in entries.items() if not stat.is_file or is_significant(name)}
        made |= {name: object_stat(each.size, each.mtime_ms * 1_000_000, is_dir=False) for name, each in listed.items()}
        return Listing(made, next(_faults(governing, directory, files), None))

    def entry(self, path: str) -> tuple[Entry, bool] | None:
        """The manifest entry of a file, and whether its ETag applies to this URI; ``None`` for a file that a task is writing,
        which is read back while the output is unfinished.

        :raises StorageError: the output is unfinished, or the store refused
        :raises CorruptLogError: a significant file is not listed
        """
        if is_late(base_name(path)):
            return None
        governing = self.governing(parent(path))
        entry = None if governing is None else governing.entry(base_name(path))
        return None if governing is None or entry is None else (entry, governing.original)

    def check(self, path: str, size: int, *, etag: str | None = None, xxh3_128: str | None = None) -> None:
        """Compare an object with its manifest entry, as far as its properties are known.

        :raises CorruptLogError: the object differs from what was written
        """
        problem = self._problem(path, size, etag, xxh3_128)
        if problem is not None and self._max_age_s < math.inf:
            # the cached manifest may be that of a replaced output
            self._known.clear()
            problem = self._problem(path, size, etag, xxh3_128)
        if problem is not None:
            raise _fault(path, *problem)

    def _problem(self, path: str, size: int, etag: str | None, xxh3_128: str | None) -> tuple[str, str] | None:
        """The property found and the one listed, if they differ."""
        entry, original = self.entry(path) or (None, False)
        if entry is None:
            return None
        if size != entry.size:
            return _sizes(size, entry)
        if original and None not in (etag, entry.etag) and etag != entry.etag:
            return f"has ETag {etag}", f"{entry.etag}"
        if None not in (xxh3_128, entry.xxh3_128) and xxh3_128 != entry.xxh3_128:
            return f"has content hash {xxh3_128}", f"{entry.xxh3_128}"
        return None


#: shared by the tasks of a process
_shared = Manifests(_MAX_AGE_S)


def shared() -> Manifests:
    """The manifests cached by this process, at most ``_MAX_AGE_S`` old."""
    return _shared


def _read(root: str, stats: list[FileStat | None]) -> Manifest | None:
    done, begun = stats
    path = join(root, MANIFEST)
    manifest = None if done is None else Manifest.parse(read_whole(path), path)
    if begun is None:
        return manifest
    if manifest is None or run_of(read_whole(join(root, MARKER))) != manifest.run:
        hint = "repeat the run that writes it"
        if manifest is not None and manifest.run is None:
            hint += f", or remove {MARKER} if no run is writing it"
        raise StorageError(_UNFINISHED, path=root, hint=hint)
    return manifest


def _faults(governing: Governing, directory: str, files: Mapping[str, FileStat]) -> Iterator[CompactionError]:
    """The mismatches between the files of a directory and its manifest."""
    listed = governing.folder.files
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


def _fault(path: str, content: str, expected: str) -> CorruptLogError:
    return CorruptLogError(f"{content}, {MANIFEST} lists it with {expected}", path=path, hint=_AGAIN)


def is_significant(name: str) -> bool:
    """Whether a broker or a run interprets files of this name."""
    file = parse_segment_file(name)
    return name in _SIGNIFICANT or (file is not None and not file.suffix) or _METADATA_SNAPSHOT.fullmatch(name) is not None


def is_late(name: str) -> bool:
    """Whether a killed task may have uploaded a file of this name after its run has ended."""
    file = parse_segment_file(name)
    return file is not None and bool(file.suffix)
