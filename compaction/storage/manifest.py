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
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import xxhash

from compaction.errors import CorruptLogError

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

    def valid(self) -> bool:
        """Whether all fields have their types."""
        numbers = all(type(number) is int and number >= 0 for number in (self.size, self.mtime_ms))
        return numbers and type(self.path) is str and all(map(_is_text, (self.etag, self.xxh3_128)))


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

    def valid(self) -> bool:
        """Whether all fields have their types."""
        return _is_text(self.etag) and all(type(value) is int for name, value in vars(self).items() if name != "etag")


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

    def valid(self) -> bool:
        """Whether all fields have their types."""
        scalars = self.rules is None or all(isinstance(value, Scalar) for value in self.rules.values())
        return scalars and _is_text(self.topic_id) and all(segment.valid() for segment in self.segments)


@dataclass(frozen=True)
class Manifest:
    """The files of an output; ``run`` and ``place`` (its URI) are ``None`` in format 1, ``request`` also in format 2, and
    ``sources`` also in format 3."""

    files: tuple[Entry, ...]
    run: str | None = None
    place: str | None = None
    request: Mapping[str, Any] | None = None
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
        valid = unique and all(entry.valid() for entry in made.files) and all(log.valid() for log in (logs or {}).values())
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


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _checksum(document: dict[str, Any]) -> str:
    covered = {name: value for name, value in document.items() if name != "checksum"}
    return xxhash.xxh3_128_hexdigest(json.dumps(covered, sort_keys=True, separators=(",", ":")).encode())


def marker(run: str, staged: str | None = None, sources: Sequence[str] | None = None) -> bytes:
    """The content of a run's marker.

    :param staged: the finished output that is being copied here
    :param sources: the log directories that the run copies; ``None`` for an export, which no other run takes over
    """
    fields = {"staged": staged, "sources": None if sources is None else sorted(sources)}
    document = {"format": FORMAT, "run": run, **{name: value for name, value in fields.items() if value is not None}}
    return (json.dumps(document) + "\n").encode()


def staged_of(data: bytes) -> str | None:
    """The finished output that is being copied to the place of a marker, if any; ``None`` if the marker is malformed."""
    return _text(_field(data, "staged"))


def sources_of(data: bytes) -> list[str] | None:
    """The log directories that a marker's run copies; ``None`` if it says none, or is malformed."""
    sources = _field(data, "sources")
    return sources if isinstance(sources, list) else None


def run_of(data: bytes) -> str | None:
    """The run of a marker; ``None`` if it is malformed."""
    return _text(_field(data, "run"))


def _field(data: bytes, name: str) -> object:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document.get(name) if isinstance(document, dict) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
