"""Reads messages by Kafka's message schemas, such as records of its internal topics, and converts them to its tools' JSON.

Mirrors the code that Kafka 4.3.1 generates from its message definitions. Numbers are big-endian. Strings, bytes and arrays
start with their length (16 bits for strings, 32 for the others), or in flexible versions with length + 1 as an unsigned varint
(0: null). A nullable structure starts with a byte (-1: null), a tagged one with a varint (0: null). Flexible structures end
with tagged fields. In JSON, fields are in the order of their definition; tagged fields with their default value are omitted;
bytes are base64, ids Kafka's text form.

The tables at the end are the schemas. A message is ``<type> <name> <versions> <first flexible version, or ->: <fields>``. A
field is ``<name> <type>``, optionally followed by ``?`` (nullable), its versions, ``#<tag>`` (``#<tag>@<versions>``: tagged in
these versions) and ``=<default>``. ``[…]`` is an array, ``{…}`` a structure. Taken from Kafka 4.3.1's message definitions
(``common/message/*.json`` and ``common/metadata/*.json`` in its jars).
"""

from __future__ import annotations

import base64
import re
import struct
from typing import Any, NamedTuple

from compaction.formats.checkpoints import topic_id_text
from compaction.formats.java_text import Json, java_text
from compaction.formats.primitives import FormatError, decode_unsigned

Values = dict[str, Any]
Value = Json | bytes

_INFINITE = 1 << 15
_NUMBERS = {
    name: struct.Struct(">" + code)
    for name, code in {
        "bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d",
    }.items()
}  # fmt: skip
_UUID_BYTES = 16
_LONGEST_STRING = 0x7FFF
_TOKEN = re.compile(r"[\[\]{},?]|[^\s\[\]{},?]+")


class MessageError(FormatError):
    """A malformed message. ``java`` is the message of Java's exception."""

    def __init__(self, message: str, position: int | None = None, java: str | None = None) -> None:
        super().__init__(message, position)
        self.java = message if java is None else java


class Versions(NamedTuple):
    """A range of versions, both ends inclusive."""

    first: int
    last: int

    def includes(self, version: int) -> bool:
        return self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str) -> Versions:
        """From ``3``, ``1-2`` or ``1+``."""
        first, dash, last = text.rstrip("+").partition("-")
        return cls(int(first), _INFINITE if text.endswith("+") else int(last if dash else first))


_ALWAYS = Versions(-_INFINITE, _INFINITE)


class Field(NamedTuple):
    """A field. ``kind`` is a number's type, ``string``, ``bytes``, ``uuid``, ``[`` (array of ``parts[0]``) or ``{`` (structure
    of ``parts``)."""

    name: str
    kind: str
    parts: tuple[Field, ...] = ()
    nullable: bool = False
    versions: Versions = _ALWAYS
    tag: int | None = None
    tagged: Versions = _ALWAYS
    default: str | None = None

    def is_tagged(self, version: int) -> bool:
        return self.tag is not None and self.tagged.includes(version)

    def default_value(self) -> Value:
        if self.default == "null":
            return None
        if self.kind in _NUMBERS:
            return self.default == "true" if self.kind == "bool" else int(self.default or 0)
        if self.kind == "uuid":
            return topic_id_text(bytes(_UUID_BYTES))
        if self.kind == "{":
            return {part.name: part.default_value() for part in self.parts}
        empty: dict[str, Value] = {"string": "", "bytes": b"", "[": []}
        return empty[self.kind]


class Message(NamedTuple):
    """The schema of one message."""

    type: int
    name: str
    versions: Versions
    flexible: Versions
    fields: tuple[Field, ...]

    def read(self, data: bytes, version: int) -> tuple[Values, int]:
        """The values at the start of ``data`` and the position after them.

        :raises MessageError: the message is malformed
        """
        reader = _Reader(data, version, self.flexible.includes(version), is_known_version=version <= self.versions.last)
        return reader.structure(self.fields), reader.pos

    def to_json(self, values: Values, version: int) -> dict[str, Json]:
        return _json_structure(self.fields, values, version)


def read_table(text: str) -> dict[tuple[int, str], Message]:
    """Parses a table of this module; messages by type and name."""
    messages = {}
    for paragraph in re.split(r"\n(?=\S)", text.strip()):
        head, _, fields = paragraph.partition(":")
        kind, name, versions, flexible = head.split()
        parser = _FieldParser(_TOKEN.findall(fields))
        messages[int(kind), name] = Message(
            int(kind),
            name,
            Versions.parse(versions),
            Versions(_INFINITE, _INFINITE) if flexible == "-" else Versions(int(flexible), _INFINITE),
            parser.fields(""),
        )
    return messages


class _FieldParser:
    """Parses the field syntax of a table."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens

    def _take(self, *tokens: str) -> bool:
        if self._tokens and self._tokens[0] in tokens:
            del self._tokens[0]
            return True
        return False

    def fields(self, end: str) -> tuple[Field, ...]:
        """Fields up to ``end``: a bracket, or empty for the end of the text."""
        parsed: list[Field] = []
        while self._tokens and self._tokens[0] != end:
            parsed.append(self._field(self._tokens.pop(0)))
            self._take(",")
        return tuple(parsed)

    def _field(self, name: str) -> Field:
        field = self._type(name)._replace(nullable=self._take("?"))
        while self._tokens and self._tokens[0] not in (",", "]", "}"):
            note = self._tokens.pop(0)
            if note.startswith("="):
                field = field._replace(default=note[1:])
            elif note.startswith("#"):
                tag, _, versions = note[1:].partition("@")
                field = field._replace(tag=int(tag), tagged=Versions.parse(versions) if versions else _ALWAYS)
            else:
                field = field._replace(versions=Versions.parse(note))
        return field

    def _type(self, name: str) -> Field:
        kind = self._tokens.pop(0)
        parts: tuple[Field, ...] = ()
        if kind == "[":
            parts = (self._type(name),)
            self._take("]")
        elif kind == "{":
            parts = self.fields("}")
            self._take("}")
        return Field(name, kind, parts)


class _Reader:
    """Reads values of one version of a message from a buffer."""

    def __init__(self, data: bytes, version: int, flexible: bool, *, is_known_version: bool) -> None:
        self._data, self._version, self._flexible, self._is_known_version = data, version, flexible, is_known_version
        self.pos = 0

    def structure(self, fields: tuple[Field, ...]) -> Values:
        present = [field for field in fields if field.versions.includes(self._version)]
        values = {field.name: self._value(field) for field in present if not field.is_tagged(self._version)}
        if self._flexible:
            by_tag = {field.tag: field for field in present if field.is_tagged(self._version)}
            for _ in range(self._unsigned()):
                tag, size = self._unsigned(), self._unsigned()
                if tag in by_tag:
                    values[by_tag[tag].name] = self._value(by_tag[tag])
                else:
                    self._array(size)
        return values

    def _value(self, field: Field) -> Value:
        number = _NUMBERS.get(field.kind)
        if number is not None:
            value: bool | int | float = number.unpack(self._take(number.size))[0]
            return value
        if field.kind == "uuid":
            return topic_id_text(self._take(_UUID_BYTES))
        if field.kind == "{":
            # a tagged structure starts with an unsigned varint instead of a byte
            if field.nullable and (self._unsigned() <= 0 if field.is_tagged(self._version) else self._take(1)[0] > 0x7F):
                return None
            if not self._is_known_version:
                # of a later version Kafka reads the message itself, but no structure in it
                raise MessageError(f"cannot read version {self._version} of {field.name}", self.pos)
            return self.structure(field.parts)
        length = self._length(2 if field.kind == "string" else 4)
        if length < 0:
            if not field.nullable:
                raise MessageError(f"non-nullable field {field.name} was serialized as null", self.pos)
            return None
        if field.kind == "[":
            available = len(self._data) - self.pos
            if length > available:
                message = f"Tried to allocate a collection of size {length}, but there are only {available} bytes remaining."
                raise MessageError(message, self.pos)
            return [self._value(field.parts[0]) for _ in range(length)]
        if field.kind == "string" and length > _LONGEST_STRING:
            raise MessageError(f"string field {field.name} had invalid length {length}", self.pos)
        raw = self._array(length)
        return raw if field.kind == "bytes" else java_text(raw)

    def _length(self, width: int) -> int:
        if self._flexible:
            return self._unsigned() - 1
        return int.from_bytes(self._take(width), "big", signed=True)

    def _unsigned(self) -> int:
        """An unsigned varint, converted to Java's signed ``int``."""
        try:
            value, self.pos = decode_unsigned(self._data, self.pos)
        except FormatError as error:
            raise MessageError(error.message, self.pos, _java_reason(self._data[self.pos : self.pos + 5])) from None
        return value - (1 << 32) if value >> 31 else value

    def _array(self, size: int) -> bytes:
        available = len(self._data) - self.pos
        if size > available:
            raise MessageError(f"Error reading byte array of {size} byte(s): only {available} byte(s) available", self.pos)
        return self._take(size)

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self.pos:
            raise MessageError(f"message ends within a field of {size} bytes", self.pos, "null")
        self.pos += size
        return self._data[self.pos - size : self.pos]


def _java_reason(varint: bytes) -> str:
    """The message of Java's exception for a malformed unsigned varint: none if the buffer ends within it."""
    if len(varint) < 5:
        return "null"
    value = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(varint[:4])) | varint[4] << 28
    return f"Varint is too long, the most significant bit in the 5th byte is set, converted value: {value & 0xFFFFFFFF:x}"


def _json_structure(fields: tuple[Field, ...], values: Values, version: int) -> dict[str, Json]:
    out: dict[str, Json] = {}
    for field in fields:
        if not field.versions.includes(version):
            continue
        default = field.default_value()
        value = values.get(field.name, default)
        if not (field.is_tagged(version) and value == default):
            out[field.name] = _json_value(field, value, version)
    return out


def _json_value(field: Field, value: Value, version: int) -> Json:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, list):
        return [_json_value(field.parts[0], element, version) for element in value]
    if isinstance(value, dict):
        return _json_structure(field.parts, value, version)
    return value


#: control records of KRaft by type; the name is the label that the dump tool prints
CONTROL_RECORDS = """
2 LeaderChange 0-1 0: version int16, leaderId int32, voters [{voterId int32, voterDirectoryId uuid 1+}], grantingVoters
    [{voterId int32, voterDirectoryId uuid 1+}]
3 SnapshotHeader 0 0: version int16, lastContainedLogTimestamp int64
4 SnapshotFooter 0 0: version int16
5 KRaftVersion 0 0: version int16, kRaftVersion int16
6 KRaftVoters 0 0: version int16, voters [{voterId int32, voterDirectoryId uuid, endpoints [{name string, host string, port
    uint16}], kRaftVersionFeature {minSupportedVersion int16, maxSupportedVersion int16}}]
"""

#: subscriptions and assignments in the members of a classic consumer group
CONSUMER_PROTOCOL = """
0 subscription 0-3 -: topics [string], userData bytes? =null, ownedPartitions [{topic string 1+, partitions [int32] 1+}] 1+,
    generationId int32 2+ =-1, rackId string? 3+ =null
1 assignment 0-3 -: assignedPartitions [{topic string, partitions [int32]}], userData bytes? =null
"""

#: records of ``__transaction_state``
TRANSACTION_RECORDS = """
0 key 0 -: transactionalId string
0 value 0-1 1: producerId int64, previousProducerId int64 1+ #0 =-1, nextProducerId int64 1+ #1 =-1, producerEpoch int16,
    nextProducerEpoch int16 1+ #3 =-1, transactionTimeoutMs int32, transactionStatus int8, transactionPartitions [{topic
    string, partitionIds [int32]}]?, transactionLastUpdateTimestampMs int64, transactionStartTimestampMs int64,
    clientTransactionVersion int16 1+ #2
"""

#: records of ``__consumer_offsets``
GROUP_RECORDS = """
0 key 0 -: group string, topic string, partition int32
0 value 0 -: offset int64, metadata string, commitTimestamp int64
1 key 0 -: group string, topic string, partition int32
1 value 0-4 4: offset int64, leaderEpoch int32 3+ =-1, metadata string, commitTimestamp int64, expireTimestamp int64 1 =-1,
    topicId uuid 4+ #0
2 key 0 -: group string
2 value 0-4 4: protocolType string, generation int32, protocol string?, leader string?, currentStateTimestamp int64 2+ =-1,
    members [{memberId string, groupInstanceId string? 3+ =null, clientId string, clientHost string, rebalanceTimeout int32
    1+ =-1, sessionTimeout int32, subscription bytes, assignment bytes}]
3 key 0 -: groupId string
3 value 0 0: epoch int32, metadataHash int64 #0
4 key 0 -: groupId string
4 value 0 0: topics [{topicId uuid, topicName string, numPartitions int32, partitionMetadata [{partition int32, racks
    [string]}]}]
5 key 0 -: groupId string, memberId string
5 value 0 0: instanceId string?, rackId string?, clientId string, clientHost string, subscribedTopicNames [string],
    subscribedTopicRegex string?, rebalanceTimeoutMs int32 =-1, serverAssignor string?, classicMemberMetadata
    {sessionTimeoutMs int32, supportedProtocols [{name string, metadata bytes}]}? #0
6 key 0 -: groupId string
6 value 0 0: assignmentEpoch int32, assignmentTimestamp int64 #0
7 key 0 -: groupId string, memberId string
7 value 0 0: topicPartitions [{topicId uuid, partitions [int32]}]
8 key 0 -: groupId string, memberId string
8 value 0 0: memberEpoch int32, previousMemberEpoch int32, state int8, assignedPartitions [{topicId uuid, partitions
    [int32], assignmentEpochs [int32]? #0}], partitionsPendingRevocation [{topicId uuid, partitions [int32],
    assignmentEpochs [int32]? #0}]
10 key 0 -: groupId string, memberId string
10 value 0 0: rackId string?, clientId string, clientHost string, subscribedTopicNames [string]
11 key 0 -: groupId string
11 value 0 0: epoch int32, metadataHash int64
12 key 0 -: groupId string
12 value 0 0: assignmentEpoch int32, assignmentTimestamp int64 #0
13 key 0 -: groupId string, memberId string
13 value 0 0: topicPartitions [{topicId uuid, partitions [int32]}]
14 key 0 -: groupId string, memberId string
14 value 0 0: memberEpoch int32, previousMemberEpoch int32, state int8, assignedPartitions [{topicId uuid, partitions
    [int32]}]
15 key 0 -: groupId string
15 value 0 0: initializingTopics [{topicId uuid, topicName string, partitions [int32]}], initializedTopics [{topicId uuid,
    topicName string, partitions [int32]}], deletingTopics [{topicId uuid, topicName string}]
16 key 0 -: groupId string, regularExpression string
16 value 0 0: topics [string], version int64, timestamp int64
17 key 0 -: groupId string
17 value 0 0: epoch int32, metadataHash int64, validatedTopologyEpoch int32 #0 =-1, lastAssignmentConfigs [{key string,
    value string}]? #1
19 key 0 -: groupId string, memberId string
19 value 0 0: instanceId string?, rackId string?, clientId string, clientHost string, rebalanceTimeoutMs int32 =-1,
    topologyEpoch int32, processId string, userEndpoint {host string, port uint16}? =null, clientTags [{key string, value
    string}]
20 key 0 -: groupId string
20 value 0 0: assignmentEpoch int32, assignmentTimestamp int64 #0
21 key 0 -: groupId string, memberId string
21 value 0 0: activeTasks [{subtopologyId string, partitions [int32]}], standbyTasks [{subtopologyId string, partitions
    [int32]}], warmupTasks [{subtopologyId string, partitions [int32]}]
22 key 0 -: groupId string, memberId string
22 value 0 0: memberEpoch int32, previousMemberEpoch int32, state int8, activeTasks [{subtopologyId string, partitions
    [int32], assignmentEpochs [int32]? #0}], standbyTasks [{subtopologyId string, partitions [int32], assignmentEpochs
    [int32]? #0}], warmupTasks [{subtopologyId string, partitions [int32], assignmentEpochs [int32]? #0}],
    activeTasksPendingRevocation [{subtopologyId string, partitions [int32], assignmentEpochs [int32]? #0}],
    standbyTasksPendingRevocation [{subtopologyId string, partitions [int32], assignmentEpochs [int32]? #0}],
    warmupTasksPendingRevocation [{subtopologyId string, partitions [int32], assignmentEpochs [int32]? #0}]
23 key 0 -: groupId string
23 value 0 0: epoch int32, subtopologies [{subtopologyId string, sourceTopics [string], sourceTopicRegex [string],
    stateChangelogTopics [{name string, partitions int32, replicationFactor int16, topicConfigs [{key string, value
    string}]}], repartitionSinkTopics [string], repartitionSourceTopics [{name string, partitions int32, replicationFactor
    int16, topicConfigs [{key string, value string}]}], copartitionGroups [{sourceTopics [int16], sourceTopicRegex [int16],
    repartitionSourceTopics [int16]}]}]
"""

#: records of ``__share_group_state``
SHARE_RECORDS = """
0 key 0 -: groupId string, topicId uuid, partition int32
0 value 0 0: snapshotEpoch int32, stateEpoch int32, leaderEpoch int32, startOffset int64, deliveryCompleteCount int32 #0
    =-1, createTimestamp int64, writeTimestamp int64, stateBatches [{firstOffset int64, lastOffset int64, deliveryState
    int8, deliveryCount int16}]
1 key 0 -: groupId string, topicId uuid, partition int32
1 value 0 0: snapshotEpoch int32, leaderEpoch int32, startOffset int64, deliveryCompleteCount int32 #0 =-1, stateBatches
    [{firstOffset int64, lastOffset int64, deliveryState int8, deliveryCount int16}]
"""

#: records of ``__remote_log_metadata``
REMOTE_LOG_RECORDS = """
0 RemoteLogSegmentMetadata 0 0: remoteLogSegmentId {topicIdPartition {name string, id uuid, partition int32}, id uuid},
    startOffset int64, endOffset int64, brokerId int32, maxTimestampMs int64, eventTimestampMs int64, segmentLeaderEpochs
    [{leaderEpoch int32, offset int64}], segmentSizeInBytes int32, customMetadata bytes? =null, remoteLogSegmentState int8,
    txnIndexEmpty bool #0
1 RemoteLogSegmentMetadataUpdate 0 0: remoteLogSegmentId {topicIdPartition {name string, id uuid, partition int32}, id
    uuid}, brokerId int32, eventTimestampMs int64, customMetadata bytes? =null, remoteLogSegmentState int8
2 RemotePartitionDeleteMetadata 0 0: topicIdPartition {name string, id uuid, partition int32}, brokerId int32,
    eventTimestampMs int64, remotePartitionDeleteState int8
3 RemoteLogSegmentMetadataSnapshot 0 0: segmentId uuid, startOffset int64, endOffset int64, brokerId int32, maxTimestampMs
    int64, eventTimestampMs int64, segmentLeaderEpochs [{leaderEpoch int32, offset int64}], segmentSizeInBytes int32,
    customMetadata bytes? =null, remoteLogSegmentState int8, txnIndexEmpty bool #0
"""

#: by record, the fields in the ``toString`` of its class
REMOTE_LOG_TEXTS = {
    "RemoteLogSegmentMetadata": "remoteLogSegmentId startOffset endOffset brokerId maxTimestampMs eventTimestampMs"
    " segmentLeaderEpochs segmentSizeInBytes customMetadata state txnIdxEmpty",
    "RemoteLogSegmentMetadataUpdate": "remoteLogSegmentId customMetadata state eventTimestampMs brokerId",
    "RemotePartitionDeleteMetadata": "topicPartition state eventTimestampMs brokerId",
    "RemoteLogSegmentMetadataSnapshot": "segmentId startOffset endOffset maxTimestampMs segmentLeaderEpochs"
    " segmentSizeInBytes customMetadata state txnIdxEmpty",
}
SEGMENT_STATES = ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED")
PARTITION_STATES = ("DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED")

#: records of ``__cluster_metadata``
METADATA_RECORDS = """
0 REGISTER_BROKER_RECORD 0-4 0: brokerId int32, isMigratingZkBroker bool 2+, incarnationId uuid, brokerEpoch int64,
    endPoints [{name string, host string, port uint16, securityProtocol int16}], features [{name string, minSupportedVersion
    int16, maxSupportedVersion int16}], rack string?, fenced bool =true, inControlledShutdown bool 1+, logDirs [uuid] 3+ #0,
    cordonedLogDirs [uuid]? 4+ #1 =null
1 UNREGISTER_BROKER_RECORD 0 0: brokerId int32, brokerEpoch int64
2 TOPIC_RECORD 0 0: name string, topicId uuid
3 PARTITION_RECORD 0-2 0: partitionId int32 =-1, topicId uuid, replicas [int32], isr [int32], removingReplicas [int32],
    addingReplicas [int32], leader int32 =-1, leaderRecoveryState int8 #0, leaderEpoch int32 =-1, partitionEpoch int32 =-1,
    directories [uuid] 1+, eligibleLeaderReplicas [int32]? 2+ #1 =null, lastKnownElr [int32]? 2+ #2 =null
4 CONFIG_RECORD 0 0: resourceType int8, resourceName string, name string, value string?
5 PARTITION_CHANGE_RECORD 0-2 0: partitionId int32 =-1, topicId uuid, isr [int32]? #0 =null, leader int32 #1 =-2, replicas
    [int32]? #2 =null, removingReplicas [int32]? #3 =null, addingReplicas [int32]? #4 =null, leaderRecoveryState int8 #5
    =-1, directories [uuid]? 1+ #8 =null, eligibleLeaderReplicas [int32]? 2+ #6 =null, lastKnownElr [int32]? 2+ #7 =null
7 FENCE_BROKER_RECORD 0 0: id int32, epoch int64
8 UNFENCE_BROKER_RECORD 0 0: id int32, epoch int64
9 REMOVE_TOPIC_RECORD 0 0: topicId uuid
10 DELEGATION_TOKEN_RECORD 0 0: owner string, requester string, renewers [string], issueTimestamp int64, maxTimestamp int64,
    expirationTimestamp int64, tokenId string
11 USER_SCRAM_CREDENTIAL_RECORD 0 0: name string, mechanism int8, salt bytes, storedKey bytes, serverKey bytes, iterations
    int32
12 FEATURE_LEVEL_RECORD 0 0: name string, featureLevel int16
14 CLIENT_QUOTA_RECORD 0 0: entity [{entityType string, entityName string?}], key string, value float64, remove bool
15 PRODUCER_IDS_RECORD 0 0: brokerId int32, brokerEpoch int64 =-1, nextProducerId int64
17 BROKER_REGISTRATION_CHANGE_RECORD 0-3 0: brokerId int32, brokerEpoch int64, fenced int8 #0, inControlledShutdown int8 1+
    #1, logDirs [uuid] 2+ #2, cordonedLogDirs [uuid]? 3+ #3 =null
18 ACCESS_CONTROL_ENTRY_RECORD 0 0: id uuid, resourceType int8, resourceName string, patternType int8, principal string,
    host string, operation int8, permissionType int8
19 REMOVE_ACCESS_CONTROL_ENTRY_RECORD 0 0: id uuid
20 NO_OP_RECORD 0 0:
21 ZK_MIGRATION_STATE_RECORD 0 0: zkMigrationState int8
22 REMOVE_USER_SCRAM_CREDENTIAL_RECORD 0 0: name string, mechanism int8
23 BEGIN_TRANSACTION_RECORD 0 0: name string? #0 =null
24 END_TRANSACTION_RECORD 0 0:
25 ABORT_TRANSACTION_RECORD 0 0: reason string? #0 =null
26 REMOVE_DELEGATION_TOKEN_RECORD 0 0: tokenId string
27 REGISTER_CONTROLLER_RECORD 0 0: controllerId int32, incarnationId uuid, zkMigrationReady bool, endPoints [{name string,
    host string, port uint16, securityProtocol int16}], features [{name string, minSupportedVersion int16,
    maxSupportedVersion int16}]
28 CLEAR_ELR_RECORD 0 0: topicName string
"""
