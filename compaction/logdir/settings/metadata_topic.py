"""Reads one KRaft metadata log: the configuration of topics and brokers stored by the controllers, and the log's position.

The newest snapshot (``<end offset>-<epoch>.checkpoint``) is the state at its end offset. It is read first, then the records of
``__cluster_metadata-0`` from that offset on. Earlier records, kept by a broker for days, are not applied again: the snapshot
has what they set, and not what was removed since. Missing data must not look like a setting that was never stored: the snapshot
must have its footer, and there must be no gap in offsets after it. Only the last segment may have a torn tail, as after an
unclean shutdown.

Mirrors ``Snapshots``, ``RecordsSnapshotReader``, ``KafkaRaftLog`` and ``KafkaRaftClient.updateListenersProgress``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from compaction.errors import CorruptLogError
from compaction.formats.metadata_log import SNAPSHOT_FOOTER, ClusterConfigs
from compaction.formats.primitives import FormatError
from compaction.names import CLUSTER_METADATA_TOPIC, LOG, parse_segment_file
from compaction.storage.filesystem import FileSystem, base_name, join
from compaction.storage.segment_file import SegmentFile, SegmentScan

METADATA_LOG = f"{CLUSTER_METADATA_TOPIC}-0"
_HINT = "restore it, or use a copy without it and give the configuration by --set or --config"
_SNAPSHOT = re.compile(r"(?P<end>\d{20})-(?P<epoch>\d{10})\.checkpoint")


class Position(NamedTuple):
    """The end of a metadata log. Of two logs of one cluster the greater is newer, as in a Raft election."""

    epoch: int
    end_offset: int


@dataclass(frozen=True)
class MetadataLog:
    """The configuration in a metadata log; ``path`` is its directory."""

    path: str
    configs: ClusterConfigs
    position: Position


def metadata_log_in(fs: FileSystem, path: str) -> str | None:
    """``path`` itself if it is a metadata log, or the metadata log in the log directory ``path``; ``None`` if there is none."""
    log = path.rstrip("/") if base_name(path.rstrip("/")) == METADATA_LOG else join(path, METADATA_LOG)
    status = fs.stat(log)
    return log if status is not None and status.is_dir else None


def read_metadata_log(fs: FileSystem, path: str) -> MetadataLog:
    """Read the metadata log in the directory ``path``.

    :raises CorruptLogError: a file is damaged or missing
    """
    return _Reader(fs, path).read()


class _Reader:
    """Reads the files of a metadata log in order; ``_position`` is the end of the data read so far."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs, self._path = fs, path
        self._configs = ClusterConfigs()
        self._position = Position(0, 0)

    def read(self) -> MetadataLog:
        names = self._fs.listdir(self._path)
        snapshots = sorted(name for name in names if _SNAPSHOT.fullmatch(name))
        for name in snapshots[-1:]:
            self._read_snapshot(name)
        segments = sorted(self._segments(names))
        next_bases = [base_offset for base_offset, _ in segments[1:]]
        for (base_offset, name), end_offset in zip_longest(segments, next_bases):
            if end_offset is None or end_offset > self._position.end_offset:
                self._read_segment(base_offset, name)
        return MetadataLog(self._path, self._configs, self._position)

    @staticmethod
    def _segments(names: list[str]) -> Iterator[tuple[int, str]]:
        for name in names:
            parts = parse_segment_file(name)
            if parts is not None and parts.kind == LOG and not parts.suffix:
                yield parts.base_offset, name

    def _read_snapshot(self, name: str) -> None:
        scan, _, last_control = self._apply(name)
        if not scan.complete or last_control != SNAPSHOT_FOOTER:
            raise self._damaged(name, "snapshot ends without its footer", scan.position)
        match = _SNAPSHOT.fullmatch(name)
        if match is not None:
            self._position = Position(int(match["epoch"]), int(match["end"]))

    def _read_segment(self, base_offset: int, name: str) -> None:
        if base_offset > self._position.end_offset:
            message = f"offsets {self._position.end_offset} to {base_offset - 1} are missing before this segment"
            raise self._damaged(name, message, 0)
        scan, epoch, _ = self._apply(name, self._position.end_offset)
        end = base_offset if scan.next_offset is None else scan.next_offset
        self._position = Position(max(epoch, self._position.epoch), max(end, self._position.end_offset))

    def _apply(self, name: str, start_offset: int = 0) -> tuple[SegmentScan, int, int]:
        """Replay a file from an offset on; returns its scan, and leader epoch and control type of its last batch (-1 for
        none)."""
        file = SegmentFile(self._fs, join(self._path, name))
        scan, epoch, control = file.scan(check_crc=True), -1, -1
        for rows in scan:
            epoch, control = int(rows["leader_epoch"][-1]), int(rows["control_type"][-1])
        damage = scan.damage()
        if damage is not None:
            raise self._damaged(name, damage, scan.position)
        try:
            self._configs.read(file.data[: scan.position].tobytes(), start_offset)
        except FormatError as error:
            raise CorruptLogError(str(error), path=file.path, hint=_HINT) from error
        return scan, epoch, control

    def _damaged(self, name: str, message: str, position: int) -> CorruptLogError:
        return CorruptLogError(message, path=join(self._path, name), position=position, hint=_HINT)
