"""Formats records of Kafka's internal topics, and control records, as Kafka's dump tool prints them.

Mirrors ``DumpLogSegments.OffsetsMessageParser``, ``TransactionLogMessageParser``, ``ShareGroupStateMessageParser``,
``ClusterMetadataLogMessageParser``, ``RemoteMetadataLogMessageParser``, ``DecoderMessageParser`` and ``printControlRecord``
(Kafka 4.3.1). As in Kafka, a record that cannot be decoded is reported in its place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

from compaction.dumping import message_schemas
from compaction.dumping.message_schemas import Message, MessageError, Values, read_table
from compaction.formats.java_text import Json, java_text, json_text
from compaction.formats.primitives import FormatError, decode_unsigned
from compaction.formats.record_batch import ABORT, COMMIT

#: from a record's key, value and offset to the texts after ``key:`` and ``payload:``; ``None`` omits one
Decoder = Callable[[bytes | None, bytes | None, int], tuple[str | None, str | None]]

_DELETED = "<DELETE>"
_SHORT_BYTES = 2
_FRAME_VERSION = 1
_SHORT_MAX, _INT_MAX = 2**15 - 1, 2**31 - 1
_SHORT_BITS, _SHORT_SIGN = 0xFFFF, 0x8000
_GROUP_METADATA = 2
_CONSUMER_PROTOCOL = "consumer"

#: version and type; version and coordinator epoch
_CONTROL_KEY, _MARKER_VALUE = struct.Struct(">hh"), struct.Struct(">hi")
_SIGN_BIT = 0x80
#: by type
_MARKERS = ("ABORT", "COMMIT")
_COORDINATOR_EPOCH = "coordinatorEpoch"
_PARTITION = "{id}:{name}-{partition}"

_table = lru_cache(maxsize=None)(read_table)


def control_text(key: bytes | None, value: bytes | None) -> str:
    """The text of a control record after its metadata.

    :raises FormatError: the record is malformed
    """
    name, message = control_record(key, value)
    if message is None:
        return f" controlType: {name}"
    if name in _MARKERS:
        return f" endTxnMarker: {name} coordinatorEpoch: {message[_COORDINATOR_EPOCH]}"
    label = f"{name}:" if name == "LeaderChange" else name
    return f" {label} {json_text(message)}"


def control_record(key: bytes | None, value: bytes | None) -> tuple[str, dict[str, Json] | None]:
    """The type of a control record and its message, ``None`` if the type is unknown. Like Kafka, reads every record but markers
    as version 0.

    :raises FormatError: the record is malformed
    """
    if key is None or len(key) < _CONTROL_KEY.size or key[0] & _SIGN_BIT:
        raise FormatError("control record has a malformed key")
    _, kind = _CONTROL_KEY.unpack_from(key)
    if kind in (ABORT, COMMIT):
        if value is None or len(value) < _MARKER_VALUE.size or value[0] & _SIGN_BIT:
            raise FormatError("end-of-transaction marker has a malformed value")
        return _MARKERS[kind], {_COORDINATOR_EPOCH: _MARKER_VALUE.unpack_from(value)[1]}
    message = next((schema for schema in _table(message_schemas.CONTROL_RECORDS).values() if schema.type == kind), None)
    if message is None:
        return f"UNKNOWN({kind})", None
    if value is None:
        raise FormatError("control record without a value")
    values, _ = message.read(value, 0)
    version = values["version"]
    return message.name, message.to_json(values, version if isinstance(version, int) else 0)


def decode_metadata(_key: bytes | None, value: bytes | None, offset: int) -> tuple[str | None, str | None]:
    """Records of ``__cluster_metadata``, which have no keys."""
    try:
        message, values, version = _framed(value or b"", message_schemas.METADATA_RECORDS)
        form: Json = {"type": message.name, "version": version, "data": message.to_json(values, version)}
        return None, json_text(form)
    except FormatError as error:
        return None, f"Error at {offset}, skipping. {error.message}"


def decode_remote_log(_key: bytes | None, value: bytes | None, offset: int) -> tuple[str | None, str | None]:
    """Records of ``__remote_log_metadata``, which have no keys; as text, not as JSON."""
    try:
        message, values, _ = _framed(value or b"", message_schemas.REMOTE_LOG_RECORDS)
        shown = _remote_log_values(message.name, values)
    except FormatError as error:
        return None, f"Error at offset {offset}, skipping. {error.message}"
    fields = message_schemas.REMOTE_LOG_TEXTS[message.name].split()
    return None, f"{message.name}{{{', '.join(f'{name}={shown[name]}' for name in fields)}}}"


def _remote_log_values(name: str, values: Values) -> Values:
    """The values as Java prints them; the checks are those of the constructors of Kafka's classes, in their order."""
    if name == "RemoteLogSegmentMetadata":
        start, end = values["startOffset"], values["endOffset"]
        if start < 0:
            raise FormatError(f"Unexpected start offset = {start}. StartOffset for a remote segment cannot be negative")
        if end < start:
            bound = f"EndOffset for a remote segment cannot be less than startOffset = {start}"
            raise FormatError(f"Unexpected end offset = {end}. {bound}")
        _leader_epochs(values)
    shown, custom = {**values, "state": _state(values)}, values.get("customMetadata")
    if "segmentLeaderEpochs" in values:
        shown["segmentLeaderEpochs"] = _leader_epochs(values)
    if "topicIdPartition" in values:
        shown["topicPartition"] = _PARTITION.format_map(values["topicIdPartition"])
    if "remoteLogSegmentId" in values:
        segment = values["remoteLogSegmentId"]
        partition = _PARTITION.format_map(segment["topicIdPartition"])
        shown["remoteLogSegmentId"] = f"RemoteLogSegmentId{{topicIdPartition={partition}, id={segment['id']}}}"
    shown["customMetadata"] = "Optional.empty" if custom is None else f"Optional[CustomMetadata{{{len(custom)} bytes}}]"
    return {**shown, "txnIdxEmpty": "true" if values.get("txnIndexEmpty") else "false"}


def _leader_epochs(values: Values) -> str:
    epochs = {entry["leaderEpoch"]: entry["offset"] for entry in values["segmentLeaderEpochs"]}
    if not epochs:
        raise FormatError("segmentLeaderEpochs can not be null or empty")
    return f"{{{', '.join(f'{epoch}={epochs[epoch]}' for epoch in sorted(epochs))}}}"


def _state(values: Values) -> str:
    of_partition = values.get("remotePartitionDeleteState")
    state = values["remoteLogSegmentState"] if of_partition is None else of_partition
    names = message_schemas.SEGMENT_STATES if of_partition is None else message_schemas.PARTITION_STATES
    if not 0 <= state < len(names):
        raise FormatError("state can not be null" if of_partition is None else "null")
    return names[state]


def _framed(value: bytes, table: str) -> tuple[Message, Values, int]:
    """A metadata record: three unsigned varints (frame version, type, version) and the message; its values and version."""
    pos, numbers = 0, []
    for name in ("frame version", "type", "version"):
        try:
            number, pos = decode_unsigned(value, pos)
        except FormatError:
            raise FormatError(f"Error while reading {name}") from None
        if _SHORT_MAX < number <= _INT_MAX:
            raise FormatError(f"Value for {name} was too large.")
        # Java casts the int to a short
        number = (number & _SHORT_BITS) - ((number & _SHORT_SIGN) << 1)
        if name == "frame version" and number != _FRAME_VERSION:
            raise FormatError(_unknown_frame(number))
        numbers.append(number)
    _, kind, version = numbers
    message = next((schema for schema in _table(table).values() if schema.type == kind), None)
    if message is None:
        raise FormatError(f"org.apache.kafka.common.errors.UnsupportedVersionException: Unknown metadata id {kind}")
    try:
        values, end = message.read(value[pos:], version)
    except MessageError:
        raise FormatError(f"Failed to deserialize record with type {kind}") from None
    if pos + end < len(value):
        raise FormatError(f"Found {len(value) - pos - end} byte(s) of garbage after {kind}")
    return message, values, version


def _unknown_frame(number: int) -> str:
    if number == 0:
        return (
            "Could not deserialize metadata record with frame version 0. Note that upgrades from the preview release of KRaft"
            " in 2.8 to newer versions are not supported."
        )
    return (
        f"Could not deserialize metadata record due to unknown frame version {number}"
        f"(only frame version {_FRAME_VERSION} is supported)"
    )


def text_decoder(name: str) -> Callable[[bytes], str]:
    """One of Kafka's decoder classes by its full or short name; ``KeyError`` for any other."""
    package, _, short = name.rpartition(".")
    if package not in ("", "org.apache.kafka.tools.api"):
        raise KeyError(name)
    return {"StringDecoder": java_text, "IntegerDecoder": _number(">i"), "LongDecoder": _number(">q")}[short]


def decode_with(key_decoder: Callable[[bytes], str], value_decoder: Callable[[bytes], str]) -> Decoder:
    def decode(key: bytes | None, value: bytes | None, _offset: int) -> tuple[str | None, str | None]:
        return None if key is None else key_decoder(key), None if value is None else value_decoder(value)

    return decode


#: keys and values as UTF-8
decode_text = decode_with(java_text, java_text)


def _number(code: str) -> Callable[[bytes], str]:
    layout = struct.Struct(code)

    def decode(raw: bytes) -> str:
        try:
            return str(layout.unpack_from(raw)[0])
        except struct.error:
            raise FormatError(f"{layout.size} bytes expected for a number, {len(raw)} found") from None

    return decode


def _coordinator_record(table: str, key: bytes | None, value: bytes | None, offset: int) -> tuple[str | None, str | None]:
    if key is None:
        raise FormatError("the decoder needs a key, but the record has none")
    try:
        kind = _version(key, "key")
        if (kind, "key") not in _table(table):
            return f"Unknown record type {kind} at offset {offset}, skipping.", None
        message = _table(table)[kind, "key"]
        shown = json_text({"type": str(kind), "data": message.to_json(_read(message, key, 0, kind), 0)})
        return shown, _DELETED if value is None else _coordinator_value(table, kind, value)
    except FormatError as error:
        return f"Error at offset {offset}, skipping. {error.message}", None


decode_offsets: Decoder = partial(_coordinator_record, message_schemas.GROUP_RECORDS)
decode_transactions: Decoder = partial(_coordinator_record, message_schemas.TRANSACTION_RECORDS)
decode_share_state: Decoder = partial(_coordinator_record, message_schemas.SHARE_RECORDS)
#: the decoders whose messages are JSON
MESSAGE_DECODERS = (decode_offsets, decode_transactions, decode_share_state, decode_metadata)


def _coordinator_value(table: str, kind: int, value: bytes) -> str:
    message = _table(table)[kind, "value"]
    version = _version(value, "value")
    if not message.versions.includes(version):
        raise FormatError(f"Found an unknown record version {version} for {kind} type")
    values = _read(message, value, version, version)
    form = message.to_json(values, version)
    if table is message_schemas.GROUP_RECORDS and kind == _GROUP_METADATA and values["protocolType"] == _CONSUMER_PROTOCOL:
        _show_members(form["members"], values["members"])
    return json_text({"version": str(version), "data": form})


def _read(message: Message, data: bytes, version: int, version_in_error: int) -> Values:
    """The message after a version number; ``version_in_error`` is the version in Kafka's error message."""
    try:
        return message.read(data[_SHORT_BYTES:], version)[0]
    except MessageError as error:
        reason = f"Could not read record with version {version_in_error} from {message.name}'s buffer due to: {error.java}."
        raise FormatError(reason) from None


def _show_members(forms: Any, members: Any) -> None:
    """Replaces the bytes of members' subscriptions and assignments by their decoded form if it can be read."""
    for form, member in zip(forms, members, strict=True):
        for message in _table(message_schemas.CONSUMER_PROTOCOL).values():
            raw: bytes = member[message.name]
            with suppress(FormatError):
                version = _version(raw, message.name)
                form[message.name] = message.to_json(message.read(raw[_SHORT_BYTES:], version)[0], version)


def _version(data: bytes, name: str) -> int:
    if len(data) < _SHORT_BYTES:
        raise FormatError(f"Could not read version from {name}'s buffer.")
    return int.from_bytes(data[:_SHORT_BYTES], "big", signed=True)
