"""Kafka's own messages: the tables compared with the definitions in its jars, and messages written by Kafka, dumped by both."""

from __future__ import annotations

import base64
import json
import random
import re
import string
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from compaction.dumping import message_schemas
from compaction.dumping.message_schemas import Field, Message, Versions, read_table
from compaction.formats.java_text import Json
from tests.conformance.dump_files import T0, write_segments
from tests.conformance.dump_tool import KafkaDump, our_dump
from tests.kafka.encode import Batch, Record
from tests.kafka.gateway import Gateway
from tests.kafka.jars import KAFKA_TOOLS, TOOLS_RELEASE, require_tools_classpath

pytestmark = pytest.mark.kafka

_GENERATED = "org.apache.kafka.coordinator.{}.generated."
#: jar, the package of its messages, the table, the option that decodes them
FAMILIES = {
    "group": ("kafka-group-coordinator", _GENERATED.format("group"), message_schemas.GROUP_RECORDS, "--offsets-decoder"),
    "transaction": (
        "kafka-transaction-coordinator",
        _GENERATED.format("transaction"),
        message_schemas.TRANSACTION_RECORDS,
        "--transaction-log-decoder",
    ),
    "share": (
        "kafka-share-coordinator",
        _GENERATED.format("share"),
        message_schemas.SHARE_RECORDS,
        "--share-group-state-decoder",
    ),
    "metadata": (
        "kafka-metadata",
        "org.apache.kafka.common.metadata.",
        message_schemas.METADATA_RECORDS,
        "--cluster-metadata-decoder",
    ),
    "remote log": (
        "kafka-storage",
        "org.apache.kafka.server.log.remote.metadata.storage.generated.",
        message_schemas.REMOTE_LOG_RECORDS,
        "--remote-log-metadata-decoder",
    ),
}
CLIENT_MESSAGES = (
    (2, "LeaderChange", "LeaderChangeMessage", message_schemas.CONTROL_RECORDS),
    (3, "SnapshotHeader", "SnapshotHeaderRecord", message_schemas.CONTROL_RECORDS),
    (4, "SnapshotFooter", "SnapshotFooterRecord", message_schemas.CONTROL_RECORDS),
    (5, "KRaftVersion", "KRaftVersionRecord", message_schemas.CONTROL_RECORDS),
    (6, "KRaftVoters", "VotersRecord", message_schemas.CONTROL_RECORDS),
    (0, "subscription", "ConsumerProtocolSubscription", message_schemas.CONSUMER_PROTOCOL),
    (1, "assignment", "ConsumerProtocolAssignment", message_schemas.CONSUMER_PROTOCOL),
)


class Definition(NamedTuple):
    """A message as Kafka defines it; ``kind`` is ``key``, ``value`` or the record type's name."""

    java_name: str
    type: int
    kind: str
    body: Mapping[str, Any]


def definitions(jar: str) -> list[Definition]:
    """The message definitions in a jar."""
    path = next(path for path in map(Path, require_tools_classpath().split(":")) if f"{jar}-4" in path.name)
    found = []
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if re.fullmatch(r"(common/)?(message|metadata)/(?!ProducerSnapshot)\w+\.json", name):
                text = archive.read(name).decode()
                body = json.loads(re.sub(r"^\s*//.*|(?<=[,\[{}\]\s])//.*", "", text, flags=re.MULTILINE))
                kind = body["type"].removeprefix("coordinator-")
                if kind == "metadata" and jar == "kafka-storage":
                    kind = body["name"].removesuffix("Record")
                elif kind == "metadata":
                    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", body["name"]).upper()
                found.append(Definition(body["name"], body.get("apiKey", -1), kind, body))
    return found


def defined_fields(fields: list[dict[str, Any]], structs: Mapping[str, Any], only_version: bool) -> tuple[Field, ...]:
    """Definitions of fields in the form of a table."""
    return tuple(_defined_field(field, structs, only_version) for field in fields)


def _defined_field(field: dict[str, Any], structs: Mapping[str, Any], only_version: bool) -> Field:
    kind = field["type"]
    name = field["name"][0].lower() + field["name"][1:]
    versions = field.get("versions", field.get("taggedVersions", "0+"))
    base = kind.removeprefix("[]")
    parts = defined_fields(field.get("fields") or structs[base], structs, only_version) if base[0].isupper() else ()
    made = Field(name, "{" if parts else base, parts)
    if kind != base:
        made = Field(name, "[", (made,))
    default = field.get("default")
    plain = None if default in (None, "", "0", 0, "false", False) else str(default)
    made = made._replace(nullable="nullableVersions" in field, default=plain)
    if not (versions == "0+" or (only_version and versions == "0")):
        made = made._replace(versions=Versions.parse(versions))
    if "tag" in field:
        made = made._replace(tag=int(field["tag"]))
        if field["taggedVersions"] != versions:
            made = made._replace(tagged=Versions.parse(field["taggedVersions"]))
    return made


def defined(definition: Definition, kind: int | None = None, name: str | None = None) -> Message:
    """A definition in the form of a table."""
    body = definition.body
    structs = {each["name"]: each["fields"] for each in body.get("commonStructs", [])}
    flexible = body.get("flexibleVersions", "none")
    return Message(
        definition.type if kind is None else kind,
        definition.kind if name is None else name,
        Versions.parse(body["validVersions"]),
        Versions(1 << 15, 1 << 15) if flexible == "none" else Versions.parse(flexible),
        defined_fields(body["fields"], structs, body["validVersions"] == "0"),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_table_equals_kafkas_definition(family: str) -> None:
    jar, _, table, _ = FAMILIES[family]
    expected = {(each.type, each.kind): defined(each) for each in definitions(jar)}
    assert len(expected) >= 2
    assert read_table(table) == expected


@pytest.mark.parametrize(("kind", "name", "java_name", "table"), CLIENT_MESSAGES)
def test_messages_of_clients_equal_kafkas_definition(kind: int, name: str, java_name: str, table: str) -> None:
    definition = next(each for each in definitions("kafka-clients") if each.java_name == java_name)
    assert read_table(table)[kind, name] == defined(definition, kind, name)


class Chance:
    """Creates random values of fields, as the JSON that Kafka's converters read."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def structure(self, fields: tuple[Field, ...], version: int) -> dict[str, Json]:
        wanted = [field for field in fields if field.versions.includes(version)]
        return {
            field.name: self._value(field, version)
            for field in wanted
            if not (field.is_tagged(version) and self._random.random() < 0.4)
        }

    def _value(self, field: Field, version: int) -> Json:
        if field.nullable and self._random.random() < 0.3:
            return None
        pick = self._random
        if field.kind == "[":
            return [self._value(field.parts[0], version) for _ in range(pick.randrange(3))]
        if field.kind == "{":
            return self.structure(field.parts, version)
        if field.kind in ("bytes", "uuid"):
            raw = base64.b64encode(pick.randbytes(16 if field.kind == "uuid" else pick.randrange(9)))
            return raw.decode().rstrip("=").translate(str.maketrans("+/", "-_")) if field.kind == "uuid" else raw.decode()
        if field.kind == "string":
            return "".join(pick.choices(string.ascii_letters + '"\\/\n\t\x01\x1f\x7fäßé€𝄞', k=pick.randrange(8)))
        if field.kind == "float64":
            return pick.choice([0.0, 1.5, -2.25, 1e7, 123456789.125, 1e-5, 1e300, 1024.0, 3e-3])
        if field.kind == "bool":
            return pick.random() < 0.5
        bits = int(field.kind.lstrip("uint"))
        low, high = (0, (1 << bits) - 1) if field.kind.startswith("u") else (-(1 << bits - 1), (1 << bits - 1) - 1)
        return pick.choice([low, high, 0, pick.randint(low, high)])


class JavaMessages:
    """Converts JSON into the bytes of a record, with Kafka's classes."""

    def __init__(self, gateway: Gateway, package: str) -> None:
        self._gateway, self._package = gateway, package
        self._mapper = gateway.cls("com.fasterxml.jackson.databind.ObjectMapper")()

    def _message(self, java_name: str, form: Json, version: int) -> Any:
        node = self._mapper.readTree(json.dumps(form))
        return self._gateway.cls(f"{self._package}{java_name}JsonConverter").read(node, version)

    def key(self, java_name: str, form: Json) -> bytes:
        """A coordinator record's key."""
        tools = self._gateway.cls("org.apache.kafka.common.protocol.MessageUtil")
        return bytes(tools.toCoordinatorTypePrefixedBytes(self._message(java_name, form, 0)))

    def value(self, java_name: str, form: Json, version: int) -> bytes:
        """A coordinator record's value."""
        tools = self._gateway.cls("org.apache.kafka.common.protocol.MessageUtil")
        return bytes(tools.toVersionPrefixedBytes(version, self._message(java_name, form, version)))

    def metadata(self, java_name: str, kind: int, form: Json, version: int) -> bytes:
        """A metadata record: frame version, type, version and message."""
        return bytes((1, kind, version)) + self.value(java_name, form, version)[2:]


@pytest.fixture(scope="module")
def tools() -> Iterator[Gateway]:
    """A JVM with Kafka's tools."""
    started = Gateway(KAFKA_TOOLS, version=TOOLS_RELEASE)
    yield started
    started.close()


def coordinator_records(java: JavaMessages, table: str, jar: str, chance: Chance) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values of every type in every version, a tombstone of each, and some that cannot be decoded."""
    messages = read_table(table)
    names = {(each.type, each.kind): each.java_name for each in definitions(jar)}
    for kind in sorted(kind for kind, name in messages if name == "key"):
        key = java.key(names[kind, "key"], chance.structure(messages[kind, "key"].fields, 0))
        message = messages[kind, "value"]
        yield key, None
        for version in range(message.versions.first, message.versions.last + 1):
            for _ in range(3):
                value = java.value(names[kind, "value"], chance.structure(message.fields, version), version)
                yield key, value
                yield key, value[: len(value) // 2]
        yield key, b"\x00\x63" + value[2:]
        yield key, b"\x00"
        yield key[: len(key) // 2], value
    yield b"\x00", b""
    yield b"\x7f\x00rest", b""


@pytest.mark.parametrize("family", ["group", "transaction", "share"])
@pytest.mark.parametrize("seed", range(3))
def test_coordinator_records_are_printed_alike(tools: Gateway, tmp_path: Path, family: str, seed: int) -> None:
    jar, package, table, option = FAMILIES[family]
    made = coordinator_records(JavaMessages(tools, package), table, jar, Chance(seed))
    records = tuple(Record(offset, T0, key, value) for offset, (key, value) in enumerate(made))
    agree(tools, tmp_path, records, option)


@pytest.mark.parametrize("seed", range(3))
def test_records_of_the_metadata_log_are_printed_alike(tools: Gateway, tmp_path: Path, seed: int) -> None:
    jar, package, table, option = FAMILIES["metadata"]
    java, chance = JavaMessages(tools, package), Chance(seed)
    names = {each.type: each.java_name for each in definitions(jar)}
    frames = (b"", b"\x00\x02\x00", b"\x01\x7f\x00", b"\x01\xff\xff\x7f\x00", b"\x02", b"\x80\x80\x80\x80\x7f")
    values: list[bytes | None] = [None, *frames]
    for kind, message in sorted((kind, message) for (kind, _), message in read_table(table).items()):
        for version in range(message.versions.last + 1):
            for _ in range(3):
                values.append(java.metadata(names[kind], kind, chance.structure(message.fields, version), version))
        last = values[-1] or b""
        values += [last[:-1], last + b"more"]
    agree(tools, tmp_path, tuple(Record(offset, T0, None, value) for offset, value in enumerate(values)), option)


@pytest.mark.parametrize("seed", range(3))
def test_records_of_remote_log_metadata_are_printed_alike(tools: Gateway, tmp_path: Path, seed: int) -> None:
    jar, package, table, option = FAMILIES["remote log"]
    java, chance = JavaMessages(tools, package), Chance(seed)
    names = {each.type: each.java_name for each in definitions(jar)}
    values: list[bytes | None] = [b"", b"\x00\x02\x00", b"\x01\x7f\x00", b"\x02", b"\x80\x80\x80\x80\x7f"]
    for kind, message in sorted((kind, message) for (kind, _), message in read_table(table).items()):
        for number in range(40):
            form = chance.structure(message.fields, 0)
            # most are valid
            form |= {name: number % 5 - (number == 1) for name in form if name.endswith("State")}
            if "startOffset" in form and number % 4:
                form |= {"startOffset": number, "endOffset": number + 1}
            values.append(java.metadata(names[kind], kind, form, 0))
        last = values[-1] or b""
        values += [last[:-1], last + b"more", last[:2] + b"\x05" + last[3:]]
    agree(tools, tmp_path, tuple(Record(offset, T0, None, value) for offset, value in enumerate(values)), option)


def test_messages_of_unknown_versions_and_malformed_varints_are_printed_alike(tools: Gateway, tmp_path: Path) -> None:
    jar, package, table, option = FAMILIES["group"]
    java, clients = JavaMessages(tools, package), JavaMessages(tools, "org.apache.kafka.common.message.")
    names = {(each.type, each.kind): each.java_name for each in definitions(jar)}
    chance, records = Chance(4), list[Record]()
    message = read_table(table)[2, "value"]
    key = java.key(names[2, "key"], {"group": "consumers"})
    partitions: list[Json] = [{"topic": "t", "partitions": [1]}]
    for version in (0, 3, 4, 9, -1):
        for held in ([], partitions):
            form = chance.structure(message.fields, 3) | {"protocolType": "consumer"}
            raw = clients.value("ConsumerProtocolAssignment", {"assignedPartitions": held, "userData": None}, 3)
            assignment = struct.pack(">h", version) + raw[2:]
            member = chance.structure(message.fields[-1].parts[0].parts, 3)
            form["members"] = [member | {"assignment": base64.b64encode(assignment).decode()}]
            records.append(Record(len(records), T0, key, java.value(names[2, "value"], form, 3)))
    for varint in (b"\xff\xff\xff\xff\xff", b"\x80\x81\x82\x83\x84\x01", b"\xff\xff"):
        records.append(Record(len(records), T0, key, b"\x00\x04" + varint))
    agree(tools, tmp_path, tuple(records), option)


def test_records_of_consumer_groups_are_printed_alike(tools: Gateway, tmp_path: Path) -> None:
    jar, package, table, option = FAMILIES["group"]
    java, clients, chance = JavaMessages(tools, package), JavaMessages(tools, "org.apache.kafka.common.message."), Chance(9)
    names = {(each.type, each.kind): each.java_name for each in definitions(jar)}
    messages, protocol = read_table(table), read_table(message_schemas.CONSUMER_PROTOCOL)
    records: list[Record] = []
    for version in (0, 3, 4):
        for own in range(4):
            form = chance.structure(messages[2, "value"].fields, version)
            form["protocolType"] = "consumer" if own else "connect"
            member = chance.structure(messages[2, "value"].fields[-1].parts[0].parts, version)
            for (_, name), message in protocol.items():
                java_name = next(each[2] for each in CLIENT_MESSAGES if each[1] == name)
                raw = clients.value(java_name, chance.structure(message.fields, own), own)
                member[name] = base64.b64encode(raw if own < 3 else raw[:-1]).decode()
            form["members"] = [member]
            key = java.key(names[2, "key"], {"group": "consumers"})
            records.append(Record(len(records), T0, key, java.value(names[2, "value"], form, version)))
    agree(tools, tmp_path, tuple(records), option)


def agree(tools: Gateway, directory: Path, records: tuple[Record, ...], option: str) -> None:
    """Both tools print the same for a log of these records, and print all of them."""
    assert len(records) > 10
    files = write_segments(directory, iter([(0, Batch(records).encode())]))
    theirs, ours = KafkaDump(tools).run(files, option), our_dump(files, option)
    assert theirs.finished
    assert ours.out.decode().split("\n") == theirs.out.decode().split("\n")
    assert ours.problems == ()
