"""The swap's commit point: a file in the partition directory that says what the finished swap looks like.

Until ``.compaction-swap`` is there, a killed run has changed nothing. From then on the next run finishes the swap, checkpoint
included, so that a run killed at any moment ends in the same bytes as an undisturbed one. A broker takes no notice of the
file (its name holds no offset), nor does it need it: every step of the swap is safe for a broker by itself (see ``swap``).
Since a broker may have run in between, and since a disk may lie, a journal is believed only for groups whose output is there
with the recorded content. The journal goes when all outputs were found under their final names: until then no source is
removed, it is only renamed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import xxhash

from compaction.errors import CorruptLogError
from compaction.fs.contents import FileDigest
from compaction.fs.durable import replace_file
from compaction.fs.filesystem import FileSystem, join
from compaction.names import LOG, SEGMENT_KINDS

JOURNAL = ".compaction-swap"
_VERSION = 2
_HINT = "start a broker on this directory, which finishes the swap by its own rules; .deleted files hold the segments replaced"


@dataclass(frozen=True)
class Source:
    """A segment that a group replaces: its base offset and its log's size, time of last modification and inode."""

    base_offset: int
    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True)
class JournalGroup:
    """One output segment: its files, as they must be, the log first, and the segments that they replace."""

    base_offset: int
    files: tuple[FileDigest, ...]
    sources: tuple[Source, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The suffixes of the output's files (``.log``, …), in the order in which a swap renames them."""
        return tuple(each.kind for each in self.files)


@dataclass(frozen=True)
class Journal:
    """A swap that has been decided on: its groups, ascending, and what becomes of the ``cleaner-offset-checkpoint``.

    The checkpoint moves from ``previous_checkpoint`` (``None``: no entry) to ``end_offset`` (``None``: it stays). ``owner`` is
    the token of the run that carries the swap out.
    """

    groups: tuple[JournalGroup, ...]
    previous_checkpoint: int | None
    end_offset: int | None
    owner: str = ""


def write_journal(fs: FileSystem, log_path: str, journal: Journal, like: str | None = None) -> None:
    """Commit to a swap; safe on return.

    :param like: a file whose mode and owner the journal takes, so that the broker's user can remove it
    """
    body = {**vars(journal), "groups": [_values_of(group) for group in journal.groups]}
    text = json.dumps({"version": _VERSION, "checksum": _checksum(body), **body})
    replace_file(fs, join(log_path, JOURNAL), text.encode(), like=like)


def _values_of(group: JournalGroup) -> dict[str, Any]:
    return {**vars(group), "sources": [vars(source) for source in group.sources]}


def read_journal(fs: FileSystem, log_path: str) -> Journal | None:
    """The swap that was decided on, if any.

    :raises CorruptLogError: there is a journal, but not as this version writes it
    """
    path = join(log_path, JOURNAL)
    if fs.stat(path) is None:
        return None
    data = fs.read_bytes(path)
    try:
        value = json.loads(data)
        known = value.pop("version") == _VERSION and value.pop("checksum") == _checksum(value)
        journal = _journal_of(value) if known else None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        journal = None
    if journal is None:
        raise CorruptLogError(f"the journal of an earlier run is malformed, or not of format {_VERSION}", path=path, hint=_HINT)
    return journal


def _checksum(body: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode())


def _journal_of(value: dict[str, Any]) -> Journal:
    groups = tuple(_group_of(group) for group in value["groups"])
    previous, end = (None if value[name] is None else _whole(value[name]) for name in ("previous_checkpoint", "end_offset"))
    return Journal(groups, previous, end, str(value["owner"]))


def _group_of(value: dict[str, Any]) -> JournalGroup:
    files = tuple(
        FileDigest(SEGMENT_KINDS[SEGMENT_KINDS.index(kind)], _whole(size), str(digest), _whole(mtime_ns))
        for kind, size, digest, mtime_ns in value["files"]
    )
    if not files or files[0].kind != LOG:
        raise ValueError("a group without a log")
    sources = tuple(Source(**{name: _whole(number) for name, number in source.items()}) for source in value["sources"])
    return JournalGroup(_whole(value["base_offset"]), files, sources)


def _whole(value: object) -> int:
    """A number as this package writes it; file names are made of some."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no offset, size or time")
    return value


def remove_journal(fs: FileSystem, log_path: str) -> None:
    """The swap is over; safe on return."""
    fs.unlink(join(log_path, JOURNAL))
    fs.fsync_dir(log_path)
