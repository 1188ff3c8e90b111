"""The manifest of an output in an object store: written last, so an output without a manifest is incomplete.

``MARKER`` is the first object of an output; it is removed after ``MANIFEST`` was written. Fields of the manifest (JSON):

=================  =================================================================================================
``format``         5. Format 4 is supported: its ``sources`` have no ``rules``. So are format 3, without ``sources``, format 2,
                   without ``request``, and format 1: of these fields it has only ``files``, without ``xxh3_128``
``run``            the run that wrote the output, as in its marker
``place``          the URI of the output when it was written
``request``        what the run was asked to do: sources, selection, options, time; ``null`` if unknown
``sources``        by the relative path of each log, the log that was copied: its ``topic_id`` (``null`` if unknown), the
                   identity of its ``segments`` and the ``rules`` of the copy; ``null`` if unknown. See ``SourceLog``
``files``          a list of ``path`` (relative to the manifest), ``size`` in bytes, ``mtime_ms`` (the file's
                   modification time, which a store does not keep), ``etag`` (``null`` if the store has none) and
                   ``xxh3_128`` (hex digest of the bytes; ``null`` in outputs of earlier versions, for a copy made by
                   the store of an object without one)
``checksum``       hex digest (XXH3-128) of the other fields
=================  =================================================================================================

What a run reads from an output is compared with its manifest:

* No manifest and no marker: not an output of this program; nothing is checked.
* A marker, unless of the run that wrote the manifest: the output is unfinished and is refused.
* A manifest: all listed objects must exist with the listed sizes. An unlisted object is an error if its name is significant to
  a broker; others are ignored (late uploads of killed tasks).
* An opened object must have the listed ETag, which stores return on opening. A copy of an output under another URI may have
  other ETags, so they are not compared there.
* An object read from start to end must have the listed content hash.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import xxhash

from compaction.errors import CompactionError, CorruptLogError, StorageError
from compaction.files.filesystem import FileStat, base_name, join, parent
from compaction.files.object_store import object_stat, read_whole, stat_objects_if_allowed
from compaction.names import is_significant, parse_partition_dir, parse_segment_file

MANIFEST = "_manifest.json"
MARKER = "_unfinished.json"
FORMAT = 5
_FIELDS_2 = {"format", "run", "place", "files", "checksum"}
_FIELDS_3 = _FIELDS_2 | {"request"}
_FIELDS_4 = _FIELDS_3 | {"sources"}
_FIELDS = {1: {"format", "files"}, 2: _FIELDS_2, 3: _FIELDS_3, 4: _FIELDS_4, 5: _FIELDS_4}
#: values of JSON that compare reliably
Scalar = str | int | float | bool


@dataclass(frozen=True)
class Entry:
    """One file of an output."""

    path: str
    size: int
    mtime_ms: int
    etag: str | None = None
    xxh3_128: str | None = None


_ENTRY_FIELDS = {field.name for field in fields(Entry)}
_ENTRY_FIELDS_1 = _ENTRY_FIELDS - {"xxh3_128"}


class Folder(NamedTuple):
    """A directory of an output: its files by name, and the names of its directories."""

    files: dict[str, Entry]
    folders: set[str]


@dataclass(frozen=True)
class SourceSegment:
    """The identity of a segment's ``.log`` in the source of a copy: a write or a replacement of the file changes it.

    On a disk it has size, times and inode. It does not have the device number, which changes with each mount of a snapshot. In
    a store it has size and ETag.
    """

    base_offset: int
    size: int
    mtime_ns: int = 0
    inode: int = 0
    ctime_ns: int = 0
    etag: str | None = None


@dataclass(frozen=True)
class SourceLog:
    """A log that was copied: the id of its topic, its segments when the run began, and by name the settings, rules and options
    that decide which of its records the copy has (``None``: not recorded)."""

    topic_id: str | None
    segments: tuple[SourceSegment, ...]
    rules: Mapping[str, Scalar] | None = None

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> SourceLog:
        """:raises TypeError: a field is unknown"""
        return cls(**{**fields, "segments": tuple(SourceSegment(**segment) for segment in fields["segments"])})


@dataclass(frozen=True)
class Manifest:
    """The files of an output; ``run`` and ``place`` (its URI) are ``None`` in format 1, ``request`` also in format 2, and
    ``sources`` also in format 3."""

    files: tuple[Entry, ...]
    run: str | None = None
    place: str | None = None
    request: Mapping[str, object] | None = None
    sources: Mapping[str, SourceLog] | None = None

    @classmethod
    def parse(cls, data: bytes, path: str) -> Manifest:
        """Parse the content of the file at ``path``.

        :raises CorruptLogError: it is not a manifest, or was changed
        """
        try:
            made = cls._read(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            made = None
        if made is None:
            message = f"is not a manifest of format 1 to {FORMAT}, or was changed or truncated after it was written"
            raise CorruptLogError(message, path=path, hint="copy the output again, or repeat the run that wrote it")
        return made

    @classmethod
    def _read(cls, document: Any) -> Manifest | None:
        number = document["format"]
        if type(number) is not int or set(document) != _FIELDS[number]:
            return None
        names = _ENTRY_FIELDS_1 if number == 1 else _ENTRY_FIELDS
        if any(set(fields) != names for fields in document["files"]):
            return None
        made = cls(tuple(Entry(**fields) for fields in document["files"]), document.get("run"), document.get("place"))
        sources = document.get("sources")
        logs = None if sources is None else {path: SourceLog.read(log) for path, log in sources.items()}
        made = replace(made, request=document.get("request"), sources=logs)
        unique = len({entry.path for entry in made.files}) == len(made.files)
        valid = unique and _are_valid(made.files, (logs or {}).values())
        return made if valid and (number == 1 or document["checksum"] == _checksum(document)) else None

    def to_json(self) -> bytes:
        files = [asdict(entry) for entry in sorted(self.files, key=lambda entry: entry.path)]
        sources = None if self.sources is None else {path: asdict(log) for path, log in sorted(self.sources.items())}
        document = {
            "format": FORMAT,
            "run": self.run,
            "place": self.place,
            "request": self.request,
            "sources": sources,
            "files": files,
        }
        return (json.dumps({**document, "checksum": _checksum(document)}, indent=1) + "\n").encode()

    @cached_property
    def folders(self) -> dict[str, Folder]:
        """The directories by relative path; ``""`` is that of the manifest."""
        folders = {"": Folder({}, set())}
        for entry in self.files:
            folder, _, name = entry.path.rpartition("/")
            folders.setdefault(folder, Folder({}, set())).files[name] = entry
            while folder:
                folder, _, name = folder.rpartition("/")
                folders.setdefault(folder, Folder({}, set())).folders.add(name)
        return folders


_TYPES = {"str": (str,), "int": (int,), "str | None": (str, type(None))}


def _has_types(value: Entry | SourceSegment | SourceLog) -> bool:
    """Whether the fields that are text or numbers have their types, as JSON may not."""
    simple = ((field.name, _TYPES[str(field.type)]) for field in fields(value) if field.type in _TYPES)
    return all(type(getattr(value, name)) in types for name, types in simple)


def _are_valid(entries: Iterable[Entry], logs: Iterable[SourceLog]) -> bool:
    return all(_has_types(entry) and min(entry.size, entry.mtime_ms) >= 0 for entry in entries) and all(
        _has_types(log)
        and all(map(_has_types, log.segments))
        and (log.rules is None or all(isinstance(value, Scalar) for value in log.rules.values()))
        for log in logs
    )


def _checksum(document: Mapping[str, object]) -> str:
    covered = {name: value for name, value in document.items() if name != "checksum"}
    return xxhash.xxh3_128_hexdigest(json.dumps(covered, sort_keys=True, separators=(",", ":")).encode())


class Marker(NamedTuple):
    """The marker of a run; as parsed, a malformed or missing field is ``None``.

    :ivar staged: the finished output that is being copied here
    :ivar sources: the log directories that the run copies, sorted; ``None`` for an export, which no other run takes over
    """

    run: str | None
    staged: str | None = None
    sources: list[str] | None = None

    def to_json(self) -> bytes:
        fields = {name: value for name, value in self._asdict().items() if value is not None}
        return (json.dumps({"format": FORMAT, **fields}) + "\n").encode()

    @classmethod
    def parse(cls, data: bytes) -> Marker:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            document = None
        fields = document if isinstance(document, dict) else {}
        run, staged, sources = fields.get("run"), fields.get("staged"), fields.get("sources")
        return cls(
            run if isinstance(run, str) else None,
            staged if isinstance(staged, str) else None,
            sources if isinstance(sources, list) else None,
        )


#: how long a task caches a manifest
_MAX_AGE_S = 10.0
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

    def check(self, path: str, size: int, etag: str | None = None, xxh3_128: str | None = None) -> None:
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
    if manifest is None or Marker.parse(read_whole(join(root, MARKER))).run != manifest.run:
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


def is_late(name: str) -> bool:
    """Whether a killed task may have uploaded a file of this name after its run has ended."""
    file = parse_segment_file(name)
    return file is not None and bool(file.suffix)
