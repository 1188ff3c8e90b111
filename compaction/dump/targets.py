"""Determines the kind of a file from its name, and the files of a directory to dump.

The kinds are those of Kafka's dump tool, and checkpoints.

Tested by ``tests/jobs/test_dump_log.py`` and ``tests/conformance/test_dump_log.py``.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from compaction.fs.filesystem import FileSystem, base_name, join, parent
from compaction.fs.uri import is_remote
from compaction.names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    INDEX,
    LEADER_EPOCHS,
    LOG,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    SNAPSHOT,
    TIMEINDEX,
    TXNINDEX,
    parse_partition_dir,
    parse_segment_file,
)

METADATA_SNAPSHOT = ".checkpoint"
BOOTSTRAP_SNAPSHOT = "bootstrap.checkpoint"
#: the checkpoints of a log directory, in the order of the dump
LOG_DIR_FILES = (META_PROPERTIES, CLEAN_SHUTDOWN, RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS)
OFFSET_CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS)
#: the checkpoints of a partition
PARTITION_FILES = (LEADER_EPOCHS, PARTITION_METADATA)
_BY_NAME = frozenset((*LOG_DIR_FILES, *PARTITION_FILES))
_OFFSET = re.compile(r"[0-9]{1,20}")
_LONG_MAX = 2**63 - 1
_SNAPSHOT_NAME = re.compile(r"(?P<offset>[0-9]{20})-(?P<epoch>[0-9]{10})\.checkpoint")
_KIND_ORDER = (LOG, INDEX, TIMEINDEX, TXNINDEX, SNAPSHOT)


class Kind(Enum):
    """The kind of a file; the value is its name in errors."""

    LOG = "log"
    METADATA_SNAPSHOT = "metadata snapshot"
    INDEX = "index"
    TIMEINDEX = "time index"
    TXNINDEX = "transaction index"
    SNAPSHOT = "producer snapshot"
    CHECKPOINT = "checkpoint"
    UNKNOWN = "unknown file"


_SUFFIXES = {
    LOG: Kind.LOG,
    METADATA_SNAPSHOT: Kind.METADATA_SNAPSHOT,
    INDEX: Kind.INDEX,
    TIMEINDEX: Kind.TIMEINDEX,
    TXNINDEX: Kind.TXNINDEX,
    SNAPSHOT: Kind.SNAPSHOT,
}


class Target(NamedTuple):
    """A file to dump: ``shown`` is the given path as Java prints it, ``absolute`` the absolute path."""

    path: str
    shown: str
    absolute: str

    @classmethod
    def of(cls, path: str, working_dir: str) -> Target:
        """From a path or URI; URIs are not made absolute."""
        if is_remote(path):
            return cls(path, path.rstrip("/"), path.rstrip("/"))
        shown = re.sub("/+", "/", path)
        shown = shown.rstrip("/") or "/"
        return cls(path, shown, shown if shown.startswith("/") else f"{working_dir.rstrip('/')}/{shown}")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.shown.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name up to its first dot, in a segment's file its base offset."""
        return self.name.partition(".")[0]

    @property
    def base_offset(self) -> int | None:
        """The base offset in the name, if there is one."""
        offset = int(self.stem) if _OFFSET.fullmatch(self.stem) else _LONG_MAX + 1
        return offset if offset <= _LONG_MAX else None

    @property
    def kind(self) -> Kind:
        """The kind by the name or its last suffix."""
        if self.name in _BY_NAME:
            return Kind.CHECKPOINT
        return _SUFFIXES.get("." + self.name.rpartition(".")[2], Kind.UNKNOWN) if "." in self.name else Kind.UNKNOWN

    @property
    def snapshot_id(self) -> tuple[int, int] | None:
        """End offset and epoch in the name of a metadata snapshot."""
        match = _SNAPSHOT_NAME.fullmatch(self.name)
        return None if match is None else (int(match["offset"]), int(match["epoch"]))

    def sibling(self, kind: str) -> str:
        """The path of another file of the same segment."""
        return join(parent(self.path), self.stem + kind)


def partition_files(fs: FileSystem, directory: str) -> list[str]:
    """The files of a partition directory: segment by segment, then its checkpoints."""
    names = fs.listdir(directory)
    parsed = {name: parse_segment_file(name) for name in names}
    own = [(file.base_offset, _KIND_ORDER.index(file.kind), name) for name, file in parsed.items() if file and not file.suffix]
    return [join(directory, name) for name in (*(name for *_, name in sorted(own)), *PARTITION_FILES) if name in parsed]


def log_dir_files(fs: FileSystem, directory: str) -> list[str]:
    """The checkpoints of a log directory, then those of its partitions."""
    names = set(fs.listdir(directory))
    files = [join(directory, name) for name in LOG_DIR_FILES if name in names]
    for name in sorted(names):
        path = join(directory, name)
        if is_partition(fs, path):
            held = set(fs.listdir(path))
            files += [join(path, each) for each in PARTITION_FILES if each in held]
    return files


def is_partition(fs: FileSystem, path: str) -> bool:
    """Whether it is a partition directory."""
    if parse_partition_dir(base_name(path)) is None:
        return False
    found = fs.stat(path)
    return found is not None and found.is_dir
