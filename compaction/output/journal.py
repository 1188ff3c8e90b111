"""The swap's journal: a file in the partition directory that describes the result of the swap.

Writing ``.compaction-swap`` commits the swap. A run that is killed before that has changed nothing; after it, the next run
finishes the swap and the checkpoint, and the log ends up with the same bytes as without the kill. A broker ignores the file
(its name has no offset) and does not need it: each step of the swap is safe for a broker (see ``swap``). Because a broker may
have run in between, and because a disk may return other bytes, the journal applies only to groups whose output has the
recorded content. It is removed once all outputs have been checked under their final names; until then sources are renamed, not
removed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import xxhash

from compaction.errors import CorruptLogError
from compaction.files.contents import FileDigest
from compaction.files.durable import DurableSteps, names_in, replacement
from compaction.files.filesystem import FileSystem, join
from compaction.names import LOG, SEGMENT_KINDS

JOURNAL = ".compaction-swap"
_VERSION = 2
_HINT = "start a broker on this directory, which finishes the swap by its own rules; .deleted files hold the segments replaced"


@dataclass(frozen=True)
class Source:
    """A segment that a group replaces: its base offset, and its log's size, mtime and inode."""

    base_offset: int
    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True)
class JournalGroup:
    """One output segment: its expected files, log first, and the segments that they replace, ascending."""

    base_offset: int
    files: tuple[FileDigest, ...]
    sources: tuple[Source, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the output's files (``.log``, …), in the order in which a swap renames them."""
        return tuple(file.kind for file in self.files)


@dataclass(frozen=True)
class Journal:
    """A committed swap: its groups, ascending, and the change of the ``cleaner-offset-checkpoint``.

    The checkpoint moves from ``previous_checkpoint`` (``None``: no entry) to ``end_offset`` (``None``: unchanged). ``owner`` is
    the token of the run that committed the swap.
    """

    groups: tuple[JournalGroup, ...]
    previous_checkpoint: int | None
    end_offset: int | None
    owner: str = ""


def write_journal(fs: FileSystem, log_path: str, journal: Journal, like: str | None = None) -> DurableSteps[None]:
    """Commits a swap.

    :param like: the file whose mode and owner the journal takes, so that the broker's user can remove it
    """
    body = asdict(journal)
    text = json.dumps({"version": _VERSION, "checksum": _checksum(body), **body})
    yield from replacement(fs, join(log_path, JOURNAL), text.encode(), like=like)


def read_journal(fs: FileSystem, log_path: str) -> Journal | None:
    """The committed swap, if there is one.

    :raises CorruptLogError: the journal is malformed, or another version wrote it
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


def _checksum(body: dict[str, object]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode())


def _journal_of(value: dict[str, Any]) -> Journal:
    groups = tuple(_group_of(group) for group in value["groups"])
    previous, end = (None if value[name] is None else _number(value[name]) for name in ("previous_checkpoint", "end_offset"))
    return Journal(groups, previous, end, str(value["owner"]))


def _group_of(value: dict[str, Any]) -> JournalGroup:
    files = tuple(
        FileDigest(SEGMENT_KINDS[SEGMENT_KINDS.index(kind)], _number(size), str(digest), _number(mtime_ns))
        for kind, size, digest, mtime_ns in value["files"]
    )
    if not files or files[0].kind != LOG:
        raise ValueError("a group without a log")
    sources = tuple(Source(**{name: _number(number) for name, number in source.items()}) for source in value["sources"])
    return JournalGroup(_number(value["base_offset"]), files, sources)


def _number(value: object) -> int:
    """A number as this package writes it; file names contain some of them."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not an offset, size or time")
    return value


def remove_journal(fs: FileSystem, log_path: str) -> DurableSteps[None]:
    fs.unlink(join(log_path, JOURNAL))
    yield names_in(log_path)
