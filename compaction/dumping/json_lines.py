"""A dump as JSON lines: one object a line, each with its ``type`` and ``file``. ``docs/dump-jsonl.md`` defines the fields.

Names are those of Kafka's dump tool where it prints the field. Keys, values and header values are objects with one member that
names their encoding: ``text`` for valid UTF-8, ``base64`` for other bytes, ``json`` for a decoded message. The output is
ASCII.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from json.encoder import encode_basestring_ascii as quote
from typing import NamedTuple

from compaction.dumping.batch_reader import NOT_WELL_FORMED, LocatedBatch, Longs, Message
from compaction.dumping.record_decoders import MESSAGE_DECODERS, control_record, decode_text
from compaction.dumping.segment_dump import NO_HEADERS, SegmentDump, SegmentView, headers_at, sequence_of, time_label, v2_fields
from compaction.files.filesystem import FileSystem
from compaction.formats.codecs import Codec
from compaction.formats.java_text import java_text
from compaction.formats.primitives import FormatError
from compaction.formats.record_batch import CONTROL, MAGIC

_NO_V2_FIELDS: Mapping[str, int | None] = dict.fromkeys(
    ("baseOffset", "lastOffset", "count", "baseSequence", "lastSequence", "producerId", "producerEpoch",
     "partitionLeaderEpoch", "isTransactional", "isControl", "deleteHorizonMs"),
)  # fmt: skip

#: the fields of a line with their values
Fields = Mapping[str, object]


class Row(NamedTuple):
    """One line of a dump: the type and fields of its JSON object, and the text, ``None`` if it consists of the fields."""

    type: str
    fields: Fields
    wording: str | None = None

    @property
    def text(self) -> str:
        """As Kafka's tool prints it."""
        return " ".join(f"{name}: {value}" for name, value in self.fields.items()) if self.wording is None else self.wording

    def json(self, path: str) -> str:
        """As a JSON object without its line end, of the file at the absolute ``path``."""
        return json.dumps({"type": self.type, "file": path, **self.fields}, separators=(",", ":"))


class JsonSegmentDump(SegmentDump):
    """A segment's batches and records as JSON objects of ``file``, each with its line end."""

    def __init__(self, file: str, fs: FileSystem, path: str, view: SegmentView, note_gap: Callable[[int, int], object]) -> None:
        super().__init__(fs, path, view, note_gap)
        self._file = file

    def _batch(self, batch: LocatedBatch, data: memoryview) -> Iterator[str]:
        header, valid = batch.header, self._checked(batch, data)
        fields = v2_fields(batch) if batch.magic >= MAGIC else {**_NO_V2_FIELDS, "lastOffset": batch.last_offset}
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
                members.append(
                    f'"offset":{offset},"timestamp":{time},{label},"keySize":{key_size},"valueSize":{value_size},'
                    f'"sequence":{sequence_of(batch, offset)},"headerKeys":[{",".join(_name(name) for name, _ in headers)}]'
                )
                if view.contents:
                    members.append(f'"headerValues":[{",".join(_bytes(value) for _, value in headers)}]')
            if view.contents or control:
                key = None if key_size < 0 else records[key_at : key_at + key_size]
                value = None if value_size < 0 else records[value_at : value_at + value_size]
                members.append(_control(key, value) if control else self._pair(key, value, offset))
            texts.append(f"{before}{','.join(members)}}}\n")

    def _message(self, message: Message, batch: LocatedBatch) -> Iterator[str]:
        view, offset = self._view, message.offset
        if view.skip_metadata and not view.contents:
            self._follow(offset)
            return
        key_at, key_size, value_at, value_size = message.fields
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
            if value_at + max(value_size, 0) > len(message.data):
                raise FormatError(NOT_WELL_FORMED)
            key = None if key_size < 0 else bytes(message.data[key_at : key_at + key_size])
            value = None if value_size < 0 else bytes(message.data[value_at : value_at + value_size])
            line = f"{line[:-1]},{self._pair(key, value, offset)}}}"
        yield f"{line}\n"

    def _pair(self, key: bytes | None, value: bytes | None, offset: int) -> str:
        """The members ``key`` and ``value`` of a record."""
        if self._view.decoder is decode_text:
            return f'"key":{_bytes(key)},"value":{_bytes(value)}'
        shown_key, shown_value = self._decoded(key, value, offset)
        encoded = _decoded_message if self._view.decoder in MESSAGE_DECODERS else _decoded_text
        return f'"key":{encoded(shown_key, key)},"value":{encoded(shown_value, value)}'


def _control(key: bytes | None, value: bytes | None) -> str:
    """The member ``control`` of a control record: its type and its message."""
    name, message = control_record(key, value)
    return f'"control":{json.dumps({"type": name, "message": message}, separators=(",", ":"))}'


def _name(raw: bytes) -> str:
    """A header's name, which Kafka defines as UTF-8."""
    return quote(java_text(raw))


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
