"""The text files of a log directory: offset and leader epoch checkpoints, ``partition.metadata``, ``.kafka_cleanshutdown``.

A checkpoint is a version line (``0``), a count line and one line per entry; a file that is empty, or has only a version, has no
entries. Mirrors ``CheckpointFile``, ``OffsetCheckpointFile``, ``LeaderEpochCheckpointFile``, ``PartitionMetadataFile`` and
``CleanShutdownFileHandler``. Parsers raise ``CorruptLogError`` with the source and the line.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, NoReturn

from compaction.errors import CorruptLogError
from compaction.formats.java_text import java_lines
from compaction.formats.primitives import shown
from compaction.names import TopicPartition

_VERSION = 0
#: Java's ``\\s`` without line ends
_BLANKS = re.compile(r"[ \t\x0b\f]+")
_INT = re.compile(r"(?P<sign>[+-]?)0*(?P<digits>[0-9]{1,19})")
#: 16 bytes in URL-safe base64, padded or not
_TOPIC_ID = re.compile(r"(?P<digits>[A-Za-z0-9_-]{22})(?:==)?")
#: entries of one file: more than the partitions of a whole cluster; they take less than 1 GiB of memory
MAX_ENTRIES = 1 << 20
#: an entry is split into at most this many fields; entries of more than three are malformed
_MAX_FIELDS = 4


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int


def topic_id_text(raw: bytes) -> str:
    """Kafka's text form of a 16-byte id (``Uuid.toString``)."""
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def parse_offset_checkpoint(text: str, source: object) -> dict[TopicPartition, int]:
    """``topic partition offset`` lines; the last line of a partition wins, as in Kafka's map."""
    return {TopicPartition(topic, partition): offset for topic, partition, offset in _parse(text, source, (0, 32, 64))}


def format_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> str:
    """The file's text, entries in the mapping's order."""
    return _format(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())


def parse_leader_epochs(text: str, source: object) -> list[EpochEntry]:
    """``epoch startOffset`` lines, in file order."""
    return [EpochEntry(*fields) for fields in _parse(text, source, (32, 64))]


def format_leader_epochs(entries: Iterable[EpochEntry]) -> str:
    """The file's text, entries in the order given."""
    return _format(f"{epoch} {start_offset}" for epoch, start_offset in entries)


def parse_partition_metadata(text: str, source: object) -> str:
    """The topic id, Kafka's 22 characters of URL-safe base64, of ``version: N`` and ``topic_id: …``; further lines are ignored;
    the zero id is an error."""
    lines = list(islice(java_lines(text), 2))
    values = []
    for number, label in ((1, "version"), (2, "topic_id")):
        parts = re.split(r":[ \t\x0b\f]+", lines[number - 1], maxsplit=2) if len(lines) >= number else []
        if len(parts) != 2 or not parts[1]:
            _fail(source, number, f"'{label}: …' expected")
        values.append(parts[1])
    try:
        version = _integer(values[0], 32)
    except ValueError as error:
        _fail(source, 1, str(error))
    if version < _VERSION:
        _fail(source, 1, f"unknown version {version}")
    match = _TOPIC_ID.fullmatch(values[1])
    raw = base64.urlsafe_b64decode(match["digits"] + "==") if match else b""
    if not any(raw):
        _fail(source, 2, f"{shown(values[1])} is not a topic id")
    return topic_id_text(raw)


def _parse(text: str, source: object, bits: Sequence[int]) -> list[list[Any]]:
    """The entries; ``bits`` has the size of each field, 0 for a text."""
    lines = java_lines(text)
    version = _header(next(lines, None), 1, "version", source)
    if version is None:
        return []
    if version != _VERSION:
        _fail(source, 1, f"unknown version {version}, {_VERSION} expected")
    count = _header(next(lines, None), 2, "count", source)
    if count is None:
        return []
    if count > MAX_ENTRIES:
        _fail(source, 2, f"{count} entries declared, more than {MAX_ENTRIES} are not supported")
    entries = [_entry(line, number, source, bits) for number, line in enumerate(islice(lines, max(count, 0)), start=3)]
    actual = len(entries) + sum(1 for _ in lines)
    if actual != count:
        _fail(source, 2, f"{count} entries declared, {actual} found")
    return entries


def _header(line: str | None, number: int, label: str, source: object) -> int | None:
    try:
        return None if line is None else _integer(line, 32)
    except ValueError as error:
        _fail(source, number, f"{label}: {error}")


def _entry(line: str, number: int, source: object, bits: Sequence[int]) -> list[Any]:
    # Java's split drops empty strings at the end but not at the start
    fields = _BLANKS.split(line.rstrip(" \t\x0b\f"), _MAX_FIELDS)
    if len(fields) != len(bits):
        _fail(source, number, f"malformed entry {shown(line)}")
    try:
        return [_integer(field, size) if size else field for field, size in zip(fields, bits, strict=True)]
    except ValueError as error:
        _fail(source, number, str(error))


def _format(entries: Iterable[str]) -> str:
    lines = list(entries)
    return "\n".join((str(_VERSION), str(len(lines)), *lines, ""))


def _integer(text: str, bits: int) -> int:
    match = _INT.fullmatch(text)
    value = int(match["sign"] + match["digits"]) if match else None
    if value is None or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"{shown(text)} is not a {bits}-bit integer")
    return value


def _fail(source: object, line: int, message: str) -> NoReturn:
    raise CorruptLogError(f"line {line}: {message}", path=source)


class EpochRange(NamedTuple):
    """Adjacent batches of one leader epoch: the first one's base offset, the last one's last offset (inclusive)."""

    epoch: int
    first_offset: int
    last_offset: int


def agree(entries: Iterable[EpochEntry], batches: EpochRange) -> bool:
    """Whether the entries give all offsets of these batches their leader epoch."""
    epoch, first, last = batches
    latest = max((entry for entry in entries if entry.start_offset <= last), default=None, key=lambda entry: entry.start_offset)
    return latest is not None and latest.epoch == epoch and latest.start_offset <= first


def assign_epochs(entries: Sequence[EpochEntry], ranges: Iterable[EpochRange]) -> list[EpochEntry]:
    """The leader epochs of a log after those of its batches were assigned; ``entries`` if they agree.

    A batch of an epoch that the file lacks assigns it, from the batch's base offset on. Entries that contradict it are removed:
    of a later epoch that begins up to the batch, of an earlier one that begins at or past it. A batch of an earlier epoch than
    the batches before it, which no broker writes, assigns none.

    Mirrors ``LeaderEpochFileCache.assign``. Difference: Kafka assigns only epochs above the latest entry, and
    uses a file that contradicts the batches.

    :param entries: of the file, ascending
    :param ranges: of the batches, ascending
    """
    assigned, highest = list(entries), -1
    for batches in ranges:
        epoch, first, last = batches
        if epoch < highest:
            continue
        highest = epoch
        if agree(assigned, batches):
            continue
        earlier = [entry for entry in assigned if entry.epoch < epoch and entry.start_offset < first]
        own = [entry for entry in assigned if entry.epoch == epoch and entry.start_offset <= first]
        later = [entry for entry in assigned if entry.epoch > epoch and entry.start_offset > last]
        assigned = [*earlier, *(own or [EpochEntry(epoch, first)]), *later]
    return assigned
