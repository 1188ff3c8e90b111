"""Determines the kind of a file from its name, and the files of a directory to dump.

The kinds are those of Kafka's dump tool.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from compaction.files.filesystem import DISK, FileSystem, join, parent, storage_of
from compaction.names import INDEX, LOG, SNAPSHOT, TIMEINDEX, TXNINDEX, parse_segment_file

METADATA_SNAPSHOT = ".checkpoint"
BOOTSTRAP_SNAPSHOT = "bootstrap.checkpoint"
_OFFSET = re.compile(r"[0-9]{1,20}")
_LONG_MAX = 2**63 - 1
_SNAPSHOT_NAME = re.compile(r"(?P<offset>[0-9]{20})-(?P<epoch>[0-9]{10})\.checkpoint")
#: the kinds of files, which are their suffixes, with their names, in the order of a directory's dump
_KINDS = {
    LOG: "log", METADATA_SNAPSHOT: "metadata snapshot", INDEX: "index", TIMEINDEX: "time index",
    TXNINDEX: "transaction index", SNAPSHOT: "producer snapshot",
}  # fmt: skip


class Target(NamedTuple):
    """A file to dump: ``shown`` is the given path as Java prints it, ``absolute`` the absolute path."""

    path: str
    shown: str
    absolute: str

    @classmethod
    def of(cls, path: str, working_dir: str) -> Target:
        """From a path or URI; URIs are not made absolute."""
        if storage_of(path) is not DISK:
            return cls(path, path.rstrip("/"), path.rstrip("/"))
        shown = re.sub("/+", "/", path).rstrip("/") or "/"
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
        offset = int(self.stem) if _OFFSET.fullmatch(self.stem) else _LONG_MAX + 1
        return offset if offset <= _LONG_MAX else None

    @property
    def kind(self) -> str:
        """The last suffix of the name, e.g. ``.log``."""
        return "".join(self.name.rpartition(".")[1:])

    @property
    def kind_name(self) -> str:
        return _KINDS.get(self.kind, "unknown file")

    @property
    def snapshot_id(self) -> tuple[int, int] | None:
        """End offset and epoch in the name of a metadata snapshot."""
        match = _SNAPSHOT_NAME.fullmatch(self.name)
        return None if match is None else (int(match["offset"]), int(match["epoch"]))

    def sibling(self, kind: str) -> str:
        """The path of another file of the same segment."""
        return join(parent(self.path), self.stem + kind)


def partition_files(fs: FileSystem, directory: str) -> list[str]:
    parsed = ((parse_segment_file(name), name) for name in fs.listdir(directory))
    own = [(file.base_offset, [*_KINDS].index(file.kind), name) for file, name in parsed if file and not file.suffix]
    return [join(directory, name) for *_, name in sorted(own)]
