"""The logs of an export, as the reader of its layout lists it (:class:`ExportReader`).

A reader only lists what is stored. ``storage.layouts.joined_log`` selects the segments that form a log, and
``storage.layouts.layout_view`` presents them as a log directory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from compaction.formats.checkpoints import EpochEntry
from compaction.names import TopicPartition
from compaction.storage.filesystem import File, FileRange, ReadableFileSystem

#: the content of a small file, read when it is needed
Load = Callable[[], bytes]


class LogFile(NamedTuple):
    """A file of a log: ``size`` bytes in a range of a stored object, or loaded as a whole.

    The path of a range is that of an object which has these bytes, or is in the layout (``ExportReader.open``) if the object is
    encoded otherwise.
    """

    size: int
    mtime_ns: int
    content: FileRange | Load

    def load(self) -> bytes | None:
        """The content, unless it is a range."""
        return None if isinstance(self.content, FileRange) else self.content()


@dataclass(frozen=True)
class StoredSegment:
    """One stored copy of a segment.

    :param path: the object that names it in messages
    :param end_offset: exclusive
    :param files: by kind: ``.log`` always; ``.snapshot`` has the producers at the end offset
    :param epochs: the leader epochs of its batches, ascending; the first starts at ``start_offset``. Empty if unknown
    :param lineage: reads the leader epochs of the log up to its end, as its broker knew them
    :param written_ms: when it was stored; of two copies, the later one
    :param end_is_stated: the end offset is what a manifest says: it is compared with the batches if the segment is used
    :param name: ``<start offset>-<segment id>``, by which the cluster's metadata knows it, in layouts of tiered storage
    """

    path: str
    start_offset: int
    end_offset: int
    files: Mapping[str, LogFile]
    epochs: tuple[EpochEntry, ...] = ()
    lineage: Callable[[], Sequence[EpochEntry]] | None = None
    written_ms: int = 0
    end_is_stated: bool = False
    name: str | None = None


@dataclass(frozen=True)
class StoredLog:
    """All that is stored of a log, in any order.

    :param ignored: what was found and is not a part of any segment, for the user, e.g. ``"2 uploads without a manifest"``
    """

    segments: tuple[StoredSegment, ...]
    topic_id: str | None = None
    ignored: tuple[str, ...] = ()


class Place(NamedTuple):
    """Where an export is.

    :param files: reads it
    :param root: its address, below which the paths of its logs are
    :param path: the path or URI of its objects
    :param prefix: what the names of topics' directories begin with
    """

    files: ReadableFileSystem
    root: str
    path: str
    prefix: str = ""


class Content(Protocol):
    """A stored object, decoded."""

    size: int
    mtime_ns: int

    def read(self, start: int, length: int) -> bytes:
        """Up to ``length`` decoded bytes from ``start``."""

    def reader(self, start: int, end: int) -> File:
        """Open the decoded byte range ``[start, end)``."""


class ExportReader(Protocol):
    """An export at one place. Paths ``within`` it are relative."""

    def logs(self) -> Sequence[TopicPartition]:
        """The stored logs, sorted.

        :raises StorageError: the place cannot be listed
        """

    def stored(self, log: TopicPartition) -> StoredLog:
        """The stored segments of a log.

        :raises LogError: it cannot be read
        """

    def open(self, within: str) -> Content:
        """An encoded object, by the path that its :class:`LogFile` has.

        :raises LogError: it cannot be read
        """
