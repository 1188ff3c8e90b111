"""The swap's commit point: a file in the partition directory that says what the finished swap looks like.

Until ``.compaction-swap`` is there, a killed run has changed nothing. From then on the next run finishes the swap, checkpoint
included, so that a run killed at any moment ends in the same bytes as an undisturbed one. A broker takes no notice of the
file (its name holds no offset), nor does it need it: every step of the swap is safe for a broker by itself (see ``swap``).
Since a broker may have run in between, a journal is believed only for groups whose sources are exactly those recorded.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from compaction.names import SEGMENT_KINDS
from compaction.storage.durable import replace_file
from compaction.storage.filesystem import FileSystem, join

JOURNAL = ".compaction-swap"
_VERSION = 1


@dataclass(frozen=True)
class Source:
    """A segment that a group replaces: its base offset and its log's size and time of last modification."""

    base_offset: int
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class JournalGroup:
    """One output segment: ``kinds`` are the suffixes of its files (``.log``, …), ``size_bytes`` its log's size."""

    base_offset: int
    size_bytes: int
    kinds: tuple[str, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Journal:
    """A swap that has been decided on: its groups, ascending, and what becomes of the ``cleaner-offset-checkpoint``.

    The checkpoint moves from ``previous_checkpoint`` (``None``: no entry) to ``end_offset`` (``None``: it stays).
    """

    groups: tuple[JournalGroup, ...]
    previous_checkpoint: int | None
    end_offset: int | None


def write_journal(fs: FileSystem, log_path: str, journal: Journal) -> None:
    """Commit to a swap; safe on return."""
    text = json.dumps({"version": _VERSION, **asdict(journal)})
    replace_file(fs, join(log_path, JOURNAL), text.encode())


def read_journal(fs: FileSystem, log_path: str) -> Journal | None:
    """The swap that was decided on, if any. A file that cannot be understood counts as none."""
    path = join(log_path, JOURNAL)
    if fs.stat(path) is None:
        return None
    try:
        value = json.loads(fs.read_bytes(path))
        if value["version"] != _VERSION:
            return None
        groups = tuple(
            JournalGroup(
                _whole(group["base_offset"]),
                _whole(group["size_bytes"]),
                tuple(SEGMENT_KINDS[SEGMENT_KINDS.index(kind)] for kind in group["kinds"]),
                tuple(Source(**{name: _whole(number) for name, number in source.items()}) for source in group["sources"]),
            )
            for group in value["groups"]
        )
        ends = (None if value[name] is None else _whole(value[name]) for name in ("previous_checkpoint", "end_offset"))
        return Journal(groups, *ends)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        return None


def _whole(value: object) -> int:
    """A number as this package writes it; file names are made of some."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no offset, size or time")
    return value


def remove_journal(fs: FileSystem, log_path: str) -> None:
    """The swap is over; safe on return."""
    fs.unlink(join(log_path, JOURNAL))
    fs.fsync_dir(log_path)
