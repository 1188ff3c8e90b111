"""Prints the batches and records of one segment, as text or as JSON lines.

Mirrors ``DumpLogSegments.dumpLog``, ``printBatchLevel``, ``dumpBatchRecords`` and ``printRecordContents`` with
``DefaultRecordBatch``, ``DefaultRecord``, ``LegacyRecord`` and ``AbstractLegacyRecordBatch.DeepRecordsIterator`` (Kafka 4.3.1).
Where Kafka's tool fails with an exception, the same text is printed, then an error is raised.

A kernel locates the fields of v2 records, Python formats them. Of a log of 114 MB, a million records took 2.9 s, Kafka's tool
3.5 s.

JSON has one object a line, each with its ``type`` and ``file``. ``docs/dump-jsonl.md`` defines the fields. Names are those of
Kafka's dump tool where it prints the field. Keys, values and header values are objects with one member that names their
encoding: ``text`` for valid UTF-8, ``base64`` for other bytes, ``json`` for a decoded message. The output is ASCII.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quote

from compaction.dumping.batch_reader import (
    BatchReader,
    LocatedBatch,
    Longs,
    Message,
    field_bytes,
    is_valid,
    java_number,
    messages,
    plain_records,
    record_tables,
)
from compaction.dumping.findings import Row
from compaction.dumping.record_decoders import MESSAGE_DECODERS, Decoder, control_record, control_text, decode_text
from compaction.files.filesystem import FileSystem
from compaction.formats.codecs import Codec
from compaction.formats.java_text import java_text
from compaction.formats.primitives import FormatError, decode_varint
from compaction.formats.record_batch import CONTROL, DELETE_HORIZON, MAGIC, TRANSACTIONAL
from compaction.kernels.columns import NO_HEADERS

_LONG_MAX = 2**63 - 1
_INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class SegmentView:
    """The selection from a segment.

    ``decoder`` formats keys and values. ``start`` is the byte position of the first batch, ``max_bytes`` the end position.
    ``first_offset`` and ``last_offset`` (inclusive) select the batches and records of a range.
    """

    deep: bool = False
    contents: bool = False
    skip_metadata: bool = False
    decoder: Decoder = decode_text
    max_bytes: int | None = None
    start: int = 0
    first_offset: int | None = None
    last_offset: int | None = None

    @property
    def complete(self) -> bool:
        """Whether the complete file is selected."""
        return self.max_bytes is None and self.first_offset is None and self.last_offset is None


class SegmentDump:
    """Iterates over the text of one segment, in parts of lines.

    Afterwards ``position`` is the end of the last batch, ``size`` the file's size, ``invalid`` the number of batches that fail
    their CRC and ``first_invalid`` the position of the first.

    :param note_gap: called with each two non-consecutive offsets
    :raises CorruptLogError: while iterating, a batch or record cannot be read; the text before it was yielded
    :raises UnsupportedLogError: while iterating, a batch is too large
    """

    def __init__(self, fs: FileSystem, path: str, view: SegmentView, note_gap: Callable[[int, int], object]) -> None:
        self._view, self._note_gap = view, note_gap
        self._reader = BatchReader(fs, path)
        self._first = -_LONG_MAX - 1 if view.first_offset is None else view.first_offset
        self._last = _LONG_MAX if view.last_offset is None else view.last_offset
        self._previous = -1 if view.first_offset is None else None
        self.size, self.position = self._reader.size, view.start
        self.invalid = self.first_invalid = 0

    def __iter__(self) -> Iterator[str]:
        end = self.size if self._view.max_bytes is None else min(self.size, self._view.max_bytes)
        try:
            for batch in self._reader.batches(self.position, end):
                if batch.last_offset >= self._first:
                    if batch.magic >= MAGIC and batch.header.base_offset > self._last:
                        return
                    data = self._reader.data(batch)
                    yield from self._batch(batch, data)
                    if self._view.deep:
                        yield from self._records(batch, data) if batch.magic >= MAGIC else self._messages(batch, data)
                self.position = batch.end
                if batch.last_offset >= self._last:
                    return
        except FormatError as error:
            raise self._reader.error(error.message, self.position) from None

    def _batch(self, batch: LocatedBatch, data: memoryview) -> Iterator[str]:
        header = batch.header
        *fields, (horizon, time) = v2_fields(batch).items()
        shown = [f"{name}: {_java_bool(value) if isinstance(value, bool) else value}" for name, value in fields]
        v2 = " ".join([*shown, f"{horizon}: {optional_long(time)}"])
        yield v2 if batch.magic >= MAGIC else f"offset: {header.base_offset}"
        valid = self._checked(batch, data)
        yield (
            f" position: {batch.position} {time_label(batch)}: {header.max_timestamp} size: {batch.size} magic: {batch.magic}"
            f" compresscodec: {Codec.of(header.attributes).name.lower()} crc: {header.crc} isvalid: {_java_bool(valid)}\n"
        )

    def _checked(self, batch: LocatedBatch, data: memoryview) -> bool:
        """Whether a batch passes its CRC; counts those that do not.

        :raises FormatError: its magic or codec is unknown
        """
        if batch.magic < 0:
            raise FormatError("batch has an unknown magic")
        Codec.of(batch.header.attributes)
        valid = is_valid(batch, data)
        if not valid:
            self.first_invalid = self.first_invalid if self.invalid else batch.position
            self.invalid += 1
        return valid

    def _records(self, batch: LocatedBatch, data: memoryview) -> Iterator[str]:
        """The lines of the records of a v2 batch."""
        records = plain_records(batch, data)
        if Codec.of(batch.header.attributes) is not Codec.NONE:
            # Java decompresses and reads all records before it returns the first
            for _ in record_tables(records, batch.header):
                pass
        for table in record_tables(records, batch.header):
            texts: list[str] = []
            try:
                self._table(batch, records, table, texts)
            finally:
                yield "".join(texts)

    def _table(self, batch: LocatedBatch, records: bytes, table: Longs, texts: list[str]) -> None:
        """Appends the lines of records."""
        header, view, append_time, label = batch.header, self._view, batch.append_time, time_label(batch)
        for offset, time, key_at, key_size, value_at, value_size, after_value, end in table.tolist():
            if not self._first <= offset <= self._last:
                continue
            self._follow(offset)
            if not view.skip_metadata:
                time = time if append_time is None else append_time
                headers = [] if end - after_value == NO_HEADERS else headers_at(records, after_value)
                names = ",".join(java_text(name) for name, _ in headers)
                texts.append(
                    f"| offset: {offset} {label}: {time} keySize: {key_size} valueSize: {value_size}"
                    f" sequence: {sequence_of(batch, offset)} headerKeys: [{names}]"
                )
            if view.contents or header.attributes & CONTROL:
                key, value = field_bytes(records, key_at, key_size), field_bytes(records, value_at, value_size)
                if not header.attributes & CONTROL:
                    texts.append(self._contents(key, value, offset))
                elif not view.skip_metadata:
                    texts.append(control_text(key, value))
            texts.append("\n")

    def _messages(self, batch: LocatedBatch, data: memoryview) -> Iterator[str]:
        """The lines of a message, or of those in a wrapper."""
        for message in messages(batch, data):
            if self._first <= message.offset <= self._last:
                yield from self._message(message, batch)

    def _message(self, message: Message, batch: LocatedBatch) -> Iterator[str]:
        view, offset = self._view, message.offset
        if view.skip_metadata and not view.contents:
            self._follow(offset)
            yield "\n"
            return
        _, key_size, _, value_size = message.fields
        self._follow(offset)
        if not view.skip_metadata:
            stored, computed = message.crcs
            yield (
                f"| offset: {offset} {time_label(batch)}: {message.timestamp} keySize: {key_size} valueSize: {value_size}"
                f" isValid: {_java_bool(stored == computed)} crc: {stored}"
            )
        if view.contents:
            yield self._contents(*message.contents, offset)
        yield "\n"

    def _decoded(self, key: bytes | None, value: bytes | None, offset: int) -> tuple[str | None, str | None]:
        """Key and value as text of the decoder."""
        try:
            return self._view.decoder(key, value, offset)
        except FormatError as error:
            raise FormatError(f"record at offset {offset} cannot be decoded: {error.message}") from None

    def _contents(self, key: bytes | None, value: bytes | None, offset: int) -> str:
        shown_key, shown_value = self._decoded(key, value, offset)
        text, prefix = "", "| " if self._view.skip_metadata else " "
        if shown_key is not None:
            text, prefix = f"{prefix}key: {shown_key}", " "
        return text if shown_value is None else f"{text}{prefix}payload: {shown_value}"

    def _follow(self, offset: int) -> None:
        """Notes a gap before the offset of a record."""
        previous, self._previous = self._previous, offset
        if previous is not None and offset != previous + 1 and offset != java_number(previous + 1):
            self._note_gap(previous, offset)


def v2_fields(batch: LocatedBatch) -> dict[str, int | bool | None]:
    """The fields that only v2 batches have, named as Kafka prints them."""
    header = batch.header
    sequence, flags = header.base_sequence, header.attributes
    return {
        "baseOffset": header.base_offset,
        "lastOffset": batch.last_offset,
        "count": header.record_count,
        "baseSequence": sequence,
        "lastSequence": -1 if sequence == -1 else _increment(sequence, header.last_offset_delta),
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": bool(flags & TRANSACTIONAL),
        "isControl": bool(flags & CONTROL),
        "deleteHorizonMs": header.base_timestamp if flags & DELETE_HORIZON else None,
    }


def optional_long(value: int | None) -> str:
    """As Java prints an ``OptionalLong``."""
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def time_label(batch: LocatedBatch) -> str:
    """The batch's type of timestamps."""
    if not batch.magic:
        return "NoTimestampType"
    return "CreateTime" if batch.append_time is None else "LogAppendTime"


def _java_bool(value: bool) -> str:
    return "true" if value else "false"


def sequence_of(batch: LocatedBatch, offset: int) -> int:
    """The sequence number of the record at an offset of a v2 batch, -1 for none."""
    first = batch.header.base_sequence
    return _increment(first, offset - batch.header.base_offset) if first >= 0 else -1


def _increment(sequence: int, delta: int) -> int:
    """``DefaultRecordBatch.incrementSequence`` in Java's int arithmetic."""
    if sequence > java_number(_INT_MAX - delta, 32):
        return java_number(delta - (_INT_MAX - sequence) - 1, 32)
    return java_number(sequence + delta, 32)


def headers_at(records: bytes, position: int) -> list[tuple[bytes, bytes | None]]:
    """Names and values of the well-formed headers at ``records[at:]``."""
    count, position = decode_varint(records, position)
    headers = []
    for _ in range(count):
        size, start = decode_varint(records, position)
        value_size, value_at = decode_varint(records, start + size)
        position = value_at + max(value_size, 0)
        headers.append((records[start : start + size], None if value_size < 0 else records[value_at:position]))
    return headers


class JsonSegmentDump(SegmentDump):
    """A segment's batches and records as JSON objects of ``file``, each with its line end."""

    def __init__(self, file: str, fs: FileSystem, path: str, view: SegmentView, note_gap: Callable[[int, int], object]) -> None:
        super().__init__(fs, path, view, note_gap)
        self._file = file

    def _batch(self, batch: LocatedBatch, data: memoryview) -> Iterator[str]:
        header, valid = batch.header, self._checked(batch, data)
        fields = v2_fields(batch)
        if batch.magic < MAGIC:
            fields = {**dict.fromkeys(fields), "lastOffset": batch.last_offset}
        common = {
            "position": batch.position, "timestampType": time_label(batch), "maxTimestamp": header.max_timestamp,
            "size": batch.size, "magic": batch.magic, "compresscodec": Codec.of(header.attributes).name.lower(),
            "crc": header.crc, "isvalid": valid,
        }  # fmt: skip
        yield Row("batch", {**fields, **common}).json(self._file) + "\n"

    def _table(self, batch: LocatedBatch, records: bytes, table: Longs, texts: list[str]) -> None:
        append_time, control = batch.append_time, batch.header.attributes & CONTROL
        view, before = self._view, f'{{"type":"record","file":{quote(self._file)},'
        label = f'"timestampType":"{time_label(batch)}"'
        for offset, time, key_at, key_size, value_at, value_size, after_value, end in table.tolist():
            if not self._first <= offset <= self._last:
                continue
            self._follow(offset)
            if view.skip_metadata and (control or not view.contents):
                continue
            members = []
            if not view.skip_metadata:
                time = time if append_time is None else append_time
                headers = [] if end - after_value == NO_HEADERS else headers_at(records, after_value)
                names = ",".join(quote(java_text(name)) for name, _ in headers)
                members.append(
                    f'"offset":{offset},"timestamp":{time},{label},"keySize":{key_size},"valueSize":{value_size},'
                    f'"sequence":{sequence_of(batch, offset)},"headerKeys":[{names}]'
                )
                if view.contents:
                    members.append(f'"headerValues":[{",".join(_bytes(value) for _, value in headers)}]')
            if view.contents or control:
                key, value = field_bytes(records, key_at, key_size), field_bytes(records, value_at, value_size)
                if control:
                    name, message = control_record(key, value)
                    given = json.dumps({"type": name, "message": message}, separators=(",", ":"))
                    members.append(f'"control":{given}')
                else:
                    members.append(self._pair(key, value, offset))
            texts.append(f"{before}{','.join(members)}}}\n")

    def _message(self, message: Message, batch: LocatedBatch) -> Iterator[str]:
        view, offset = self._view, message.offset
        if view.skip_metadata and not view.contents:
            self._follow(offset)
            return
        _, key_size, _, value_size = message.fields
        self._follow(offset)
        fields: dict[str, object] = {}
        if not view.skip_metadata:
            stored, computed = message.crcs
            fields = {
                "offset": offset, "timestamp": message.timestamp, "timestampType": time_label(batch),
                "keySize": key_size, "valueSize": value_size, "isValid": stored == computed, "crc": stored,
            }  # fmt: skip
        line = Row("record", fields).json(self._file)
        if view.contents:
            line = f"{line[:-1]},{self._pair(*message.contents, offset)}}}"
        yield f"{line}\n"

    def _pair(self, key: bytes | None, value: bytes | None, offset: int) -> str:
        """The members ``key`` and ``value`` of a record."""
        if self._view.decoder is decode_text:
            return f'"key":{_bytes(key)},"value":{_bytes(value)}'
        shown_key, shown_value = self._decoded(key, value, offset)
        encoded = _decoded_message if self._view.decoder in MESSAGE_DECODERS else _decoded_text
        return f'"key":{encoded(shown_key, key)},"value":{encoded(shown_value, value)}'


def _bytes(raw: bytes | None) -> str:
    """Bytes as ``text`` if they are valid UTF-8, else as ``base64``."""
    if raw is None:
        return "null"
    try:
        return f'{{"text":{quote(raw.decode())}}}'
    except UnicodeDecodeError:
        return f'{{"base64":"{b64encode(raw).decode()}"}}'


def _decoded_message(text: str | None, raw: bytes | None) -> str:
    """A message as ``json``, or the reason why it cannot be read as ``text``."""
    if raw is None or text is None:
        return "null"
    if text.startswith("{"):
        return f'{{"json":{json.dumps(json.loads(text), separators=(",", ":"))}}}'
    return f'{{"text":{quote(text)}}}'


def _decoded_text(text: str | None, raw: bytes | None) -> str:
    """A number as ``text``; a string as without a decoder."""
    return _bytes(raw) if raw is None or text is None or text == java_text(raw) else f'{{"text":{quote(text)}}}'
