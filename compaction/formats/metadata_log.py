"""Reads topic and broker configurations from KRaft metadata: segments of ``__cluster_metadata-0``, ``.checkpoint`` snapshots.

Metadata records are the values of data batches: the frame version (1), type and version as unsigned varints, then the message,
with compact strings (unsigned varint length + 1, 0 for null), then tagged fields. Only records that create or remove a topic,
or set a configuration or the level of a feature, are applied. Those of a metadata transaction are applied when it ends, and
discarded if it is aborted. Mirrors ``AbstractApiMessageSerde``, ``ConfigurationControlManager.replay``, ``TopicsImage`` and
``FeaturesImage``.

The log does not contain the high watermark: uncommitted records are applied too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from compaction.formats.checkpoints import topic_id_text
from compaction.formats.primitives import Buffer, FormatError, decode_unsigned
from compaction.formats.record_batch import HEADER, MAGIC, parse_batch

_FRAME_VERSION = 1
_VERSION = 0
_UUID_BYTES = 16
_LEVEL_BYTES = 2
#: limit of a decompressed batch; controllers write at most 8 MiB
_LIMIT_BYTES = 64 << 20

# record types
_TOPIC = 2
_CONFIG = 4
_REMOVE_TOPIC = 9
_FEATURE_LEVEL = 12
_BEGIN_TRANSACTION = 23
_END_TRANSACTION = 24
_ABORT_TRANSACTION = 25
_TRANSACTION_TYPES = (_BEGIN_TRANSACTION, _END_TRANSACTION, _ABORT_TRANSACTION)
_APPLIED_TYPES = frozenset((_TOPIC, _CONFIG, _REMOVE_TOPIC, _FEATURE_LEVEL, *_TRANSACTION_TYPES))

#: type of the control record that ends a snapshot (``ControlRecordType.SNAPSHOT_FOOTER``)
SNAPSHOT_FOOTER = 4

# resource types of configuration records
_TOPIC_RESOURCE = 2
_BROKER_RESOURCE = 4

#: the broker id of the cluster-wide defaults
CLUSTER_DEFAULT = ""


class MetadataRecord(NamedTuple):
    """A framed record: its type, version and message bytes."""

    type: int
    version: int
    message: memoryview


@dataclass
class ClusterConfigs:
    """The configurations so far, and the levels of the features. Keys of ``brokers`` are node ids as text, or
    ``CLUSTER_DEFAULT``."""

    topics: dict[str, dict[str, str]] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    brokers: dict[str, dict[str, str]] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    _open: list[MetadataRecord] | None = None

    def read(self, buf: Buffer, start_offset: int = 0) -> None:
        """Applies the records of the batches in a segment or a snapshot in order.

        :param start_offset: records below it are not read
        :raises FormatError: a batch or record is damaged
        """
        position = 0
        while position < len(buf):
            if (magic := HEADER.get(buf, "magic", position)) != MAGIC:
                raise FormatError(f"metadata batch of magic {magic}", position)
            batch = parse_batch(buf, position)
            position += batch.size
            if batch.is_control or batch.last_offset < start_offset:
                continue
            batch.ensure_valid()
            for record in batch.records(_LIMIT_BYTES):
                if record.offset >= start_offset:
                    self._accept(parse_record(record.value or b""))

    def _accept(self, record: MetadataRecord) -> None:
        if record.type not in _APPLIED_TYPES:
            return
        if record.version != _VERSION:
            raise FormatError(f"metadata record of type {record.type} has version {record.version}, {_VERSION} expected")
        if record.type == _BEGIN_TRANSACTION:
            self._open = []
        elif record.type in (_END_TRANSACTION, _ABORT_TRANSACTION):
            finished, self._open = self._open or [], None
            for pending in finished if record.type == _END_TRANSACTION else ():
                self._apply(pending)
        elif self._open is not None:
            self._open.append(record)
        else:
            self._apply(record)

    def _apply(self, record: MetadataRecord) -> None:
        own = {
            _TOPIC: self._topic,
            _REMOVE_TOPIC: self._remove_topic,
            _CONFIG: self._config,
            _FEATURE_LEVEL: self._feature_level,
        }
        own[record.type](record.message)

    def _topic(self, message: memoryview) -> None:
        name, pos = _string(message, 0)
        self.topic_ids[name or ""] = _uuid(message, pos)
        # settings are a topic's, not a name's: a new topic has none
        self.topics.pop(name or "", None)

    def _remove_topic(self, message: memoryview) -> None:
        topic_id = _uuid(message, 0)
        for name in [name for name, assigned_id in self.topic_ids.items() if assigned_id == topic_id]:
            del self.topic_ids[name]
            self.topics.pop(name, None)

    def _feature_level(self, message: memoryview) -> None:
        name, pos = _string(message, 0)
        if len(message) < pos + _LEVEL_BYTES:
            raise FormatError("metadata record ends inside a feature's level", pos)
        self.features[name or ""] = int.from_bytes(message[pos : pos + _LEVEL_BYTES], "big", signed=True)

    def _config(self, message: memoryview) -> None:
        if not len(message):
            raise FormatError("empty configuration record")
        resource, pos = _string(message, 1)
        key, pos = _string(message, pos)
        value, _ = _string(message, pos)
        owners = {_TOPIC_RESOURCE: self.topics, _BROKER_RESOURCE: self.brokers}.get(message[0])
        if owners is None or resource is None or key is None:
            return
        configs = owners.setdefault(resource, {})
        if value is None:
            configs.pop(key, None)
        else:
            configs[key] = value
        if not configs:
            del owners[resource]


def parse_record(value: Buffer) -> MetadataRecord:
    frame, pos = decode_unsigned(value, 0)
    if frame != _FRAME_VERSION:
        raise FormatError(f"metadata record with frame version {frame}, {_FRAME_VERSION} expected")
    kind, pos = decode_unsigned(value, pos)
    version, pos = decode_unsigned(value, pos)
    return MetadataRecord(kind, version, memoryview(value)[pos:])


def _string(message: memoryview, pos: int) -> tuple[str | None, int]:
    start = pos
    length, pos = decode_unsigned(message, pos)
    if length == 0:
        return None, pos
    raw = bytes(message[pos : pos + length - 1])
    if len(raw) < length - 1:
        raise FormatError("metadata record ends inside a string", start)
    try:
        return raw.decode("utf-8"), pos + length - 1
    except UnicodeDecodeError:
        raise FormatError("metadata record with a string that is not UTF-8", start) from None


def _uuid(message: memoryview, pos: int) -> str:
    raw = bytes(message[pos : pos + _UUID_BYTES])
    if len(raw) < _UUID_BYTES:
        raise FormatError("metadata record ends inside an id", pos)
    return topic_id_text(raw)
