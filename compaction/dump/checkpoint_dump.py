"""Prints and verifies the checkpoints of a log directory and of its partitions.

Kafka has no tool for checkpoints; the rules are those of a broker that reads them (Kafka 4.3.0: ``LogManager``, ``UnifiedLog``,
``LeaderEpochFileCache``, ``LogCleanerManager``, ``MetaProperties``, ``PartitionMetadataFile``, ``CleanShutdownFileHandler``). A
malformed file raises an error. A file that contradicts itself or the logs in its directory is printed completely, and each
contradiction is a finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from compaction.dump.findings import Findings
from compaction.dump.targets import OFFSET_CHECKPOINTS, Target, is_partition
from compaction.errors import CorruptLogError
from compaction.formats.checkpoints import (
    EpochEntry,
    parse_clean_shutdown,
    parse_leader_epochs,
    parse_offset_entries,
    parse_partition_metadata,
)
from compaction.formats.properties import parse_meta_properties
from compaction.fs.filesystem import FileSystem, base_name, join, parent
from compaction.fs.text_files import read_small_text
from compaction.logdir.segments import inspect_segment, segment_bases
from compaction.names import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCHS,
    META_PROPERTIES,
    PARTITION_METADATA,
    TopicPartition,
    parse_partition_dir,
)

_REPAIR = "remove or repair it; a broker writes a new one"
_FIRST_ENTRY_LINE = 3


class Bounds(NamedTuple):
    """First offset and end offset (exclusive) of a log, from its segments."""

    first_offset: int
    end_offset: int


class CheckpointDump:
    """Dumps checkpoints; caches the bounds of logs and the ids of topics."""

    def __init__(self, fs: FileSystem, findings: Findings) -> None:
        self._fs, self._findings = fs, findings
        self._bounds: dict[str, Bounds | None] = {}
        self._topic_ids: dict[tuple[str, str], tuple[str, str]] = {}

    def dump(self, target: Target) -> Iterator[str]:
        """Lines for one file.

        :raises CorruptLogError: the file is malformed
        """
        dumpers: dict[str, Callable[[Target, str], Iterator[str]]] = {
            LEADER_EPOCHS: self._epochs,
            PARTITION_METADATA: self._partition,
            META_PROPERTIES: self._meta,
            CLEAN_SHUTDOWN: self._clean_shutdown,
            **dict.fromkeys(OFFSET_CHECKPOINTS, self._offsets),
        }
        yield from dumpers[target.name](target, self._text(target))

    def _text(self, target: Target) -> str:
        # Java reads properties as Latin-1
        return read_small_text(self._fs, target.path, _REPAIR, "latin-1" if target.name == META_PROPERTIES else "utf-8")

    def _offsets(self, target: Target, text: str) -> Iterator[str]:
        entries = parse_offset_entries(text, target.path)
        yield f"version: 0 entries: {len(entries)}"
        counts = Counter(name for name, _ in entries)
        for line, (name, offset) in enumerate(entries, _FIRST_ENTRY_LINE):
            path = join(parent(target.path), str(name))
            known = is_partition(self._fs, path)
            bounds = self._bounds_of(path) if known else None
            where = _shown_bounds(bounds) if known else " (no such log here)"
            yield f"topic: {name.topic} partition: {name.partition} offset: {offset}{where}"
            if counts[name] > 1:
                self._note(target, f"line {line}: {name} appears {counts[name]} times, the last line wins")
                counts[name] = 1
            self._note(target, *_offset_problems(line, (name, offset), bounds))

    def _epochs(self, target: Target, text: str) -> Iterator[str]:
        entries = parse_leader_epochs(text, target.path)
        directory = parent(target.path)
        bounds = self._bounds_of(directory) if parse_partition_dir(base_name(directory)) else None
        yield f"version: 0 entries: {len(entries)}{_shown_bounds(bounds)}"
        before: EpochEntry | None = None
        for line, entry in enumerate(entries, _FIRST_ENTRY_LINE):
            yield f"epoch: {entry.epoch} startOffset: {entry.start_offset}"
            self._note(target, *_epoch_problems(line, entry, before, bounds))
            before = entry

    def _partition(self, target: Target, text: str) -> Iterator[str]:
        found = parse_partition_metadata(text, target.path)
        yield f"version: {found.version} topicId: {found.topic_id}"
        directory = parent(target.path)
        name = parse_partition_dir(base_name(directory))
        if name is not None:
            first, other = self._topic_ids.setdefault((parent(directory), name.topic), (found.topic_id, directory))
            if first != found.topic_id:
                self._note(target, f"line 2: topic id {found.topic_id} differs from {first} in {other}")

    def _meta(self, target: Target, text: str) -> Iterator[str]:
        found = parse_meta_properties(text, target.path)
        shown = {
            "version": found.version, "clusterId": found.cluster_id, "nodeId": found.node_id, "directoryId": found.directory_id,
        }  # fmt: skip
        yield " ".join(f"{name}: {value}" for name, value in shown.items() if value is not None)
        if found.version:
            missing = [name for name, value in (("cluster.id", found.cluster_id), ("node.id", found.node_id)) if value is None]
            self._note(target, *(f"{name} is missing; a broker does not start without it" for name in missing))

    def _clean_shutdown(self, target: Target, text: str) -> Iterator[str]:
        epoch = parse_clean_shutdown(text)
        yield "clean shutdown" if epoch is None else f"clean shutdown brokerEpoch: {epoch}"

    def _bounds_of(self, path: str) -> Bounds | None:
        """The bounds of the log in a directory; ``None`` if it has no segments or they cannot be read."""
        if path not in self._bounds:
            self._bounds[path] = None
            bases = segment_bases(self._fs, path)
            try:
                if bases:
                    last = inspect_segment(self._fs, path, bases[-1], active=True).segment
                    self._bounds[path] = Bounds(bases[0], last.next_offset)
            except CorruptLogError as error:
                self._findings.errors.append(error)
        return self._bounds[path]

    def _note(self, target: Target, *problems: str) -> None:
        self._findings.errors += [CorruptLogError(problem, path=target.path) for problem in problems]


def _shown_bounds(bounds: Bounds | None) -> str:
    return "" if bounds is None else f" firstOffset: {bounds.first_offset} logEndOffset: {bounds.end_offset}"


def _offset_problems(line: int, entry: tuple[TopicPartition, int], bounds: Bounds | None) -> Iterator[str]:
    name, offset = entry
    if offset < 0:
        yield f"line {line}: {name} has the negative offset {offset}"
    elif bounds is not None and offset > bounds.end_offset:
        yield f"line {line}: {name} has offset {offset}, past its log end offset {bounds.end_offset}"


def _epoch_problems(line: int, entry: EpochEntry, before: EpochEntry | None, bounds: Bounds | None) -> Iterator[str]:
    if entry.epoch < 0 or entry.start_offset < 0:
        yield f"line {line}: epoch {entry.epoch} at offset {entry.start_offset} is negative"
    if before is not None and entry.epoch <= before.epoch:
        yield f"line {line}: epoch {entry.epoch} is not greater than epoch {before.epoch}"
    if before is not None and entry.start_offset <= before.start_offset:
        yield f"line {line}: epoch {entry.epoch} starts at offset {entry.start_offset}, not after {before.start_offset}"
    if bounds is not None and entry.start_offset > bounds.end_offset:
        end = bounds.end_offset
        yield f"line {line}: epoch {entry.epoch} starts at offset {entry.start_offset}, past the log end offset {end}"
