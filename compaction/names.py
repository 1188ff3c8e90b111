"""File and directory names of a Kafka log directory; no other module formats or parses them. Also the reference version.

Mirrors ``LogFileUtils``, ``LocalLog.parseTopicPartitionName`` and ``UnifiedLog``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

#: the version of Kafka whose classes docstrings name, but for those that give another one
REFERENCE_VERSION = "4.4.0"

LOG = ".log"
INDEX = ".index"
TIMEINDEX = ".timeindex"
TXNINDEX = ".txnindex"
SNAPSHOT = ".snapshot"
#: the files of one segment, in the order in which a swap renames them (Kafka: ``LogSegment.changeFileSuffixes``)
SEGMENT_KINDS = (LOG, INDEX, TIMEINDEX, TXNINDEX)

CLEAN = ".clean"
#: the suffix of a broker's unfinished cleaning or splitting
CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"

LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"

#: other files in a partition directory; the last one only in that of the metadata log (``FileQuorumStateStore``)
_LOG_FILES = frozenset((LEADER_EPOCHS, PARTITION_METADATA, "quorum-state"))
#: files beside the partition directories that a copy takes over unchanged (``bootstrap.checkpoint``: ``BootstrapDirectory``)
_LOG_DIR_FILES = frozenset((META_PROPERTIES, CLEAN_SHUTDOWN, "bootstrap.checkpoint"))
_CHECKPOINTS = frozenset((RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS))
_SEGMENT_FILE = re.compile(
    r"(?P<base>\d{20})(?P<kind>\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(?P<suffix>(?:\.[\w-]+)*)"
)
_METADATA_SNAPSHOT = re.compile(r"\d{20}-\d{10}\.checkpoint")
_MARKED_DIR = re.compile(r"\S+-\S+\.[0-9a-f]{32}-(?:delete|future|stray)")
_PARTITION_DIR = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>\d{1,10})")


class TopicPartition(NamedTuple):
    """A partition of a topic; ``str`` is its directory name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class LogLocation:
    """The location of a log: ``path`` is the partition directory in ``log_dir``."""

    topic_partition: TopicPartition
    log_dir: str
    path: str

    def __str__(self) -> str:
        return self.path


class SegmentFile(NamedTuple):
    """A parsed segment file name, e.g. ``00000000000000000000.log.swap``."""

    base_offset: int
    kind: str
    suffix: str


def segment_file(base_offset: int, kind: str, suffix: str = "") -> str:
    """The name of a segment's file: 20 digits, the kind (``.log``, …) and an optional suffix (``.swap``, …)."""
    return f"{base_offset:020d}{kind}{suffix}"


def parse_segment_file(name: str) -> SegmentFile | None:
    """The parts of a segment file's name, or ``None`` for any other file."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None:
        return None
    return SegmentFile(int(match["base"]), match["kind"], match["suffix"])


def is_log_file(name: str) -> bool:
    """Whether a broker loads this file of a partition directory: not a temporary, renamed or foreign file."""
    file = parse_segment_file(name)
    if file is not None:
        return not file.suffix
    return name in _LOG_FILES or _METADATA_SNAPSHOT.fullmatch(name) is not None


def is_log_dir_file(name: str) -> bool:
    """Whether a broker reads this file beside the partition directories, and no run writes it."""
    return name in _LOG_DIR_FILES


def is_of_log_dir(name: str) -> bool:
    """Whether a name in a log directory is a broker's: a file, or a directory of a log, also a marked one."""
    is_file = name in _LOG_DIR_FILES or name in _CHECKPOINTS or name == LOCK
    return is_file or parse_partition_dir(name) is not None or _MARKED_DIR.fullmatch(name) is not None


def is_significant(name: str) -> bool:
    """Whether a broker or a run interprets a file of this name in an output of a run."""
    known = is_log_file(name) or is_log_dir_file(name) or name in _CHECKPOINTS
    return known and name not in ("quorum-state", "bootstrap.checkpoint")


def marked_dirs_of(names: Iterable[str], logs: Collection[TopicPartition]) -> list[str]:
    """The directories among ``names`` that are marked ``-delete``, ``-future`` or ``-stray`` and copies of one of ``logs``.

    Names are compared by their beginning, because a broker shortens long names of topics.
    """
    marked = ((name, parse_partition_dir(name.rpartition(".")[0])) for name in names if _MARKED_DIR.fullmatch(name))
    return [
        name
        for name, copy in marked
        if copy is not None and any(copy.partition == log.partition and log.topic.startswith(copy.topic) for log in logs)
    ]


def parse_partition_dir(name: str) -> TopicPartition | None:
    """The topic-partition of a directory name; the partition follows the last ``-``.

    ``None`` for any other directory, including those marked ``-delete``, ``-future`` or ``-stray``.
    """
    if _MARKED_DIR.fullmatch(name):
        return None
    match = _PARTITION_DIR.fullmatch(name)
    if match is None or match["topic"] in (".", ".."):
        return None
    return TopicPartition(match["topic"], int(match["partition"]))
