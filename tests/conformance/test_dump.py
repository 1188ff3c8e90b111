"""The dump command compared with Kafka's own dump tool, on the same files, character for character; the tables of Kafka's own
messages compared with the definitions in its jars, and messages written by Kafka, dumped by both."""

from __future__ import annotations

import base64
import json
import random
import re
import shutil
import string
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from compaction.dumping import message_schemas
from compaction.dumping.dump_tool import find_timestamp, start_position
from compaction.dumping.message_schemas import Field, Message, Versions, read_table
from compaction.dumping.targets import Target
from compaction.files.local import LocalFileSystem
from compaction.formats.java_text import Json, java_text
from tests.conformance.dump_files import (
    DEPTHS,
    KINDS,
    T0,
    TEXTS,
    KafkaDump,
    agree,
    agree_on_all,
    agree_up_to_the_damage,
    damaged_segments,
    our_dump,
    random_files,
    records,
    sound_segments,
    write_segments,
)
from tests.golden import unpack_sample
from tests.kafka.encode import Batch, Record
from tests.kafka.gateway import Gateway
from tests.kafka.jars import KAFKA_TOOLS, TOOLS_RELEASE, require_tools_classpath
from tests.kafka.log import KafkaLog, Opening

pytestmark = pytest.mark.kafka

DAMAGED = dict(damaged_segments())
#: some of them have messages of magic 0 in a wrapper with an append time
RANDOM_LOGS = (0, 1, 3, 8, 24)
END_IN_ZEROS = ("a size of zero", "a v2 batch of a message's size")


@pytest.fixture(scope="module")
def tools() -> Iterator[Gateway]:
    """A JVM with Kafka's tools."""
    started = Gateway(KAFKA_TOOLS, version=TOOLS_RELEASE)
    yield started
    started.close()


@pytest.fixture(scope="module")
def kafka(tools: Gateway) -> KafkaDump:
    return KafkaDump(tools)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_sample(tmp_path_factory.mktemp("sample"))


class TestSample:
    @pytest.mark.parametrize("options", [*DEPTHS, ("--index-sanity-check",), ("--verify-index-only",)], ids=" ".join)
    def test_all_files_of_a_broker_are_printed_alike(self, kafka: KafkaDump, sample: Path, options: tuple[str, ...]) -> None:
        files = sorted(path for path in sample.glob("*/*") if path.suffix in KINDS)
        assert len(files) > 200
        assert agree(kafka, files, *options).problems == ()

    @pytest.mark.parametrize(
        ("option", "pattern"),
        [
            ("--offsets-decoder", "__consumer_offsets-0/*.log"),
            ("--transaction-log-decoder", "__transaction_state-0/*.log"),
            ("--cluster-metadata-decoder", "__cluster_metadata-0/*.log"),
            ("--cluster-metadata-decoder", "bootstrap.checkpoint"),
            ("--cluster-metadata-decoder", "orders-0/*.log"),
            ("--offsets-decoder", "orders-0/*.log"),
            ("--share-group-state-decoder", "__consumer_offsets-0/*.log"),
        ],
    )
    def test_kafkas_internal_topics_are_printed_alike(self, kafka: KafkaDump, sample: Path, option: str, pattern: str) -> None:
        files = sorted(sample.glob(pattern))
        if pattern == "orders-0/*.log" and option == "--offsets-decoder":
            # the tools give different reasons why a record cannot be decoded
            theirs, ours = kafka.run(files, option), our_dump(files, option)
            assert ours.out.count(b"\n") == theirs.out.count(b"\n")
            return
        agree(kafka, files, option)

    def test_files_with_other_names_are_ignored_or_refused_alike(self, kafka: KafkaDump, sample: Path) -> None:
        files = [sample / "orders-0" / "00000000000000000000.log.deleted", sample / "notes"]
        for path in files:
            path.write_text("something")
        assert "Ignoring unknown file" in agree(kafka, files).err

    def test_paths_are_shown_as_java_shows_them(self, kafka: KafkaDump, sample: Path) -> None:
        odd = Path("a") / "00000000000000000163.log"
        shown = f"{sample}//orders-0/./{odd.name}"
        theirs, ours = kafka.run([shown], "--deep-iteration"), our_dump([shown], "--deep-iteration")  # type: ignore[list-item]
        assert (ours.out, ours.err) == (theirs.out, theirs.err)
        assert f"Dumping {sample}/orders-0/./{odd.name}\n" in ours.out.decode()


class TestMadeSegments:
    @pytest.mark.parametrize("options", DEPTHS, ids=" ".join)
    def test_all_kinds_of_batches_and_unusual_values_are_printed_alike(
        self, kafka: KafkaDump, tmp_path: Path, options: tuple[str, ...]
    ) -> None:
        files = write_segments(tmp_path, sound_segments())
        ours = agree(kafka, files, *options)
        assert any("2 batches fail their CRC" in problem for problem in ours.problems)

    @pytest.mark.parametrize("decoder", ["Integer", "Long"])
    def test_numbers_are_decoded_alike(self, kafka: KafkaDump, tmp_path: Path, decoder: str) -> None:
        numbers = tuple(r._replace(key=bytes(range(i, i + 8)), value=b"\xff" * (8 + i)) for i, r in enumerate(records(5)))
        files = write_segments(tmp_path, iter([(0, Batch(numbers, "lz4").encode())]))
        name = f"org.apache.kafka.tools.api.{decoder}Decoder"
        agree(kafka, files, "--key-decoder-class", name, "--value-decoder-class", name)

    @pytest.mark.parametrize("what", DAMAGED)
    def test_damage_ends_both_at_the_same_character(self, kafka: KafkaDump, tmp_path: Path, what: str) -> None:
        files = write_segments(tmp_path, iter([(0, DAMAGED[what])]))
        zeros = what in END_IN_ZEROS
        died = [not agree_up_to_the_damage(kafka, files, *options, zeros=zeros).finished for options in DEPTHS[:5]]
        assert any(died), what

    @pytest.mark.parametrize("seed", range(6))
    def test_randomly_changed_bytes_are_printed_alike(self, kafka: KafkaDump, tmp_path: Path, seed: int) -> None:
        chance = random.Random(seed)
        segments = [content for _, content in sound_segments() if 0 < len(content) < 3000]
        died = 0
        for number in range(25):
            changed = bytearray(chance.choice(segments))
            for _ in range(chance.randint(1, 3)):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            files = write_segments(tmp_path, iter([(number, bytes(changed))]))
            died += not agree_up_to_the_damage(kafka, files, *chance.choice(DEPTHS)).finished
        assert died

    @pytest.mark.parametrize("seed", RANDOM_LOGS)
    def test_all_files_of_random_logs_are_printed_alike(self, kafka: KafkaDump, tmp_path: Path, seed: int) -> None:
        agree_on_all(kafka, random_files(tmp_path, seed))

    def test_bytes_become_the_text_that_java_prints(self, tools: Gateway) -> None:
        chance = random.Random(1)
        edges = b"\x41\x7f\x80\x8f\x90\x9f\xa0\xbf\xc1\xc2\xdf\xe0\xe1\xed\xef\xf0\xf1\xf4\xf5"
        cases = [bytes(chance.choices(edges, k=chance.randint(1, 9))) for _ in range(4000)] + [t for t in TEXTS if t]
        joined = b"".join(case + b"|" for case in cases)
        expected = tools.cls("java.lang.String")(joined, "UTF-8").encode()
        assert java_text(joined).encode() == expected


Harm = Callable[[bytes], bytes]


def entry(size: int, number: int, content: bytes, at: int = 0) -> Harm:
    """Overwrites bytes of an index entry."""

    def harm(data: bytes) -> bytes:
        start = number * size + at
        return data[:start] + content + data[start + len(content) :]

    return harm


INDEX_HARMS: dict[str, tuple[str, Harm]] = {
    "untouched": (".index", lambda data: data),
    "preallocated": (".index", lambda data: data + bytes(10_000)),
    "preallocated time index": (".timeindex", lambda data: data + bytes(12_000)),
    "torn": (".index", lambda data: data[:-3]),
    "torn time index": (".timeindex", lambda data: data[:-5]),
    "empty": (".index", lambda data: b""),
    "empty time index": (".timeindex", lambda data: b""),
    "all zeros": (".index", lambda data: bytes(len(data))),
    "a wrong offset": (".index", entry(8, 3, struct.pack(">i", 1))),
    "a wrong last offset": (".index", lambda data: data[:-8] + struct.pack(">i", -9) + data[-4:]),
    "a wrong position": (".index", lambda data: data[:12] + data[4:8] + data[16:]),
    "a position within a batch": (".index", entry(8, 2, struct.pack(">i", 5001), 4)),
    "a position past the end": (".index", entry(8, 2, struct.pack(">i", 2**30), 4)),
    "a negative position": (".index", entry(8, 2, struct.pack(">i", -1), 4)),
    "a wrong time": (".timeindex", entry(12, 2, struct.pack(">q", T0 + 1))),
    "times that fall": (".timeindex", lambda data: data[12:24] + data[:12] + data[24:]),
    "a last time below the first": (".timeindex", lambda data: data[:-12] + struct.pack(">q", 5) + data[-4:]),
    "an offset within a batch": (".timeindex", entry(12, 2, struct.pack(">i", 6), 8)),
    "an offset past the end": (".timeindex", entry(12, 1, struct.pack(">i", 10**6), 8)),
    "entries that do not ascend": (".index", lambda data: b"".join(data[i : i + 8] for i in range(len(data) - 8, -8, -8))),
}


@pytest.fixture(scope="module")
def log(tools: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition of one segment with indexes of many entries, written by Kafka."""
    path = tmp_path_factory.mktemp("indexes") / "wide-0"
    path.mkdir()
    with KafkaLog(tools, path, Opening(now_ms=T0 + 10**6)) as log:
        for i in range(90):
            first = T0 + 40 * i
            held = tuple(r._replace(value=bytes(700), timestamp=first + 7 * (n % 3)) for n, r in enumerate(records(4, 4 * i)))
            codec = ("none", "lz4", "none", "gzip")[i % 4]
            log.append(Batch(held, codec, log_append_time=first + 30 if i % 7 == 0 else None).encode())
    return path


@pytest.fixture(scope="module")
def opened(tools: Gateway, log: Path) -> Iterator[Any]:
    """Its segment as Kafka reads it."""
    file = tools.cls("java.io.File")(str(next(log.glob("*.log"))))
    found = tools.cls("org.apache.kafka.common.record.internal.FileRecords").open(file, False)
    yield found
    found.closeHandlers()


class TestIndexes:
    @pytest.mark.parametrize("harm", INDEX_HARMS)
    def test_valid_and_damaged_indexes_are_printed_alike(self, kafka: KafkaDump, log: Path, tmp_path: Path, harm: str) -> None:
        path = shutil.copytree(log, tmp_path / log.name)
        suffix, change = INDEX_HARMS[harm]
        harmed = next(path.glob(f"*{suffix}"))
        harmed.write_bytes(change(harmed.read_bytes()))
        for options in ((), ("--verify-index-only",), ("--index-sanity-check",), ("--max-message-size", "1000")):
            for kind in (".index", ".timeindex"):
                agree_up_to_the_damage(kafka, [next(path.glob(f"*{kind}"))], *options)

    def test_findings_of_many_files_are_in_javas_order(self, kafka: KafkaDump, log: Path, tmp_path: Path) -> None:
        files = []
        for number in range(40):
            path = shutil.copytree(log, tmp_path / f"wide-{number}")
            index, times = next(path.glob("*.index")), next(path.glob("*.timeindex"))
            index.write_bytes(INDEX_HARMS["a wrong offset"][1](index.read_bytes()))
            times.write_bytes(INDEX_HARMS["an offset past the end"][1](times.read_bytes()))
            files += [index, times, next(path.glob("*.log"))]
        ours = agree(kafka, files, "--deep-iteration")
        assert len(ours.problems) == 80

    def test_missing_index_files_are_reported_and_not_created(self, kafka: KafkaDump, log: Path, tmp_path: Path) -> None:
        for missing, asked in ((".log", ".index"), (".log", ".timeindex"), (".index", ".timeindex")):
            path = shutil.copytree(log, tmp_path / f"{missing}{asked}" / log.name)
            next(path.glob(f"*{missing}")).unlink()
            before = sorted(path.iterdir())
            ours = our_dump([next(path.glob(f"*{asked}"))])
            assert "missing" in ours.problems[0]
            assert sorted(path.iterdir()) == before
            assert not kafka.run([next(path.glob(f"*{asked}"))]).finished

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            struct.pack(">hqqqq", 0, 1, 2, 3, 4) * 3,
            struct.pack(">hqqqq", 0, 1, 2, 3, 4) + b"torn",
            struct.pack(">hqqqq", 255, 1, 2, 3, 4),
            struct.pack(">hqqqq", 256, 1, 2, 3, 4),
            struct.pack(">hqqqq", -1, -1, 2, 3, 4),
        ],
    )
    def test_transaction_indexes_are_printed_alike(self, kafka: KafkaDump, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "00000000000000000007.txnindex"
        path.write_bytes(content)
        agree_up_to_the_damage(kafka, [path])

    def test_producer_snapshots_are_printed_alike(self, kafka: KafkaDump, sample: Path, tmp_path: Path) -> None:
        sound = next(path for path in sorted(sample.glob("payments-open-0/*.snapshot")) if path.stat().st_size > 20)
        content = sound.read_bytes()
        harmed = (content[:-1], content[:4], b"\x00\x07" + content[2:], content[:-1] + b"\x09")
        for number, changed in enumerate((content, *harmed)):
            path = tmp_path / f"{number:020d}.snapshot"
            path.write_bytes(changed)
            theirs, ours = kafka.run([path]), our_dump([path])
            assert ours.out == theirs.out
            # Kafka's tool reports a malformed one on standard error and exits with 0
            assert bool(ours.problems) == bool(theirs.err)


class TestLookups:
    def test_times_are_found_where_kafka_finds_them(self, opened: Any, log: Path) -> None:
        target = Target.of(str(next(log.glob("*.log"))), "/")
        for time in range(T0 - 3, T0 + 4200, 41):
            ours = find_timestamp(LocalFileSystem(), target, time)
            theirs = opened.searchForTimestamp(time, 0, 0)
            assert (None if ours is None else (ours.offset, ours.timestamp)) == (
                None if theirs is None else (theirs.offset, theirs.timestamp)
            )

    def test_offsets_are_searched_from_kafkas_position(self, tools: Gateway, opened: Any, log: Path) -> None:
        target = Target.of(str(next(log.glob("*.log"))), "/")
        file = tools.cls("java.io.File")(target.sibling(".index"))
        index = tools.cls("org.apache.kafka.storage.internals.log.OffsetIndex")(file, 0, -1, False)
        starts = set()
        for offset in range(0, 361, 3):
            start = start_position(LocalFileSystem(), target, offset)
            assert start == index.lookup(offset).position()
            starts.add(start)
        index.closeHandler()
        assert len(starts) > 10


class Family(NamedTuple):
    """Kafka's own messages of one kind: the jar that defines them, the package of their classes, our table, and the option that
    decodes them. ``named``: of a jar with many others these only, with their types, and what our table calls them."""

    jar: str
    package: str
    table: str
    option: str = ""
    named: Sequence[tuple[str, int, str]] = ()


def _coordinator(name: str, table: str, option: str) -> Family:
    return Family(f"kafka-{name}-coordinator", f"org.apache.kafka.coordinator.{name}.generated.", table, option)


_CLIENTS = "kafka-clients", "org.apache.kafka.common.message."
_REMOTE_LOG = "kafka-storage", "org.apache.kafka.server.log.remote.metadata.storage.generated."
FAMILIES = {
    "group": _coordinator("group", message_schemas.GROUP_RECORDS, "--offsets-decoder"),
    "transaction": _coordinator("transaction", message_schemas.TRANSACTION_RECORDS, "--transaction-log-decoder"),
    "share": _coordinator("share", message_schemas.SHARE_RECORDS, "--share-group-state-decoder"),
    "metadata": Family(
        "kafka-metadata", "org.apache.kafka.common.metadata.", message_schemas.METADATA_RECORDS, "--cluster-metadata-decoder"
    ),
    "remote log": Family(*_REMOTE_LOG, message_schemas.REMOTE_LOG_RECORDS, "--remote-log-metadata-decoder"),
    "control": Family(
        *_CLIENTS,
        message_schemas.CONTROL_RECORDS,
        named=(
            ("LeaderChangeMessage", 2, "LeaderChange"),
            ("SnapshotHeaderRecord", 3, "SnapshotHeader"),
            ("SnapshotFooterRecord", 4, "SnapshotFooter"),
            ("KRaftVersionRecord", 5, "KRaftVersion"),
            ("VotersRecord", 6, "KRaftVoters"),
        ),
    ),
    "consumer protocol": Family(
        *_CLIENTS,
        message_schemas.CONSUMER_PROTOCOL,
        named=(("ConsumerProtocolSubscription", 0, "subscription"), ("ConsumerProtocolAssignment", 1, "assignment")),
    ),
}


def definitions(family: Family) -> dict[tuple[int, str], dict[str, Any]]:
    """Kafka's definitions by type and kind: ``key``, ``value`` or the record type's name."""
    path = next(path for path in map(Path, require_tools_classpath().split(":")) if f"{family.jar}-4" in path.name)
    named = {java_name: (number, kind) for java_name, number, kind in family.named}
    found: dict[tuple[int, str], dict[str, Any]] = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if re.fullmatch(r"(common/)?(message|metadata)/(?!ProducerSnapshot)\w+\.json", name):
                text = archive.read(name).decode()
                body = json.loads(re.sub(r"^\s*//.*|(?<=[,\[{}\]\s])//.*", "", text, flags=re.MULTILINE))
                kind = body["type"].removeprefix("coordinator-")
                if kind == "metadata" and family.jar == "kafka-storage":
                    kind = body["name"].removesuffix("Record")
                elif kind == "metadata":
                    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", body["name"]).upper()
                if body["name"] in named or not named:
                    found[named.get(body["name"], (body.get("apiKey", -1), kind))] = body
    return found


def defined(number: int, kind: str, body: Mapping[str, Any]) -> Message:
    """A definition in the form of a table."""
    structs = {each["name"]: each["fields"] for each in body.get("commonStructs", [])}
    flexible = body.get("flexibleVersions", "none")
    return Message(
        number,
        kind,
        Versions.parse(body["validVersions"]),
        Versions(1 << 15, 1 << 15) if flexible == "none" else Versions.parse(flexible),
        tuple(_defined_field(field, structs, body["validVersions"] == "0") for field in body["fields"]),
    )


def _defined_field(field: dict[str, Any], structs: Mapping[str, Any], only_version: bool) -> Field:
    kind = field["type"]
    name = field["name"][0].lower() + field["name"][1:]
    versions = field.get("versions", field.get("taggedVersions", "0+"))
    base = kind.removeprefix("[]")
    within = (field.get("fields") or structs[base]) if base[0].isupper() else ()
    parts = tuple(_defined_field(part, structs, only_version) for part in within)
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


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_table_equals_kafkas_definitions(family: Family) -> None:
    expected = {of: defined(*of, body) for of, body in definitions(family).items()}
    assert len(expected) >= 2
    assert read_table(family.table) == expected


class Messages:
    """Random messages of a family: the JSON that Kafka's converters read, and the bytes that its classes make of it."""

    def __init__(self, gateway: Gateway, family: str, pick: random.Random) -> None:
        self.gateway, self.pick, self._family = gateway, pick, FAMILIES[family]
        self.table = read_table(self._family.table)
        self._names = {of: body["name"] for of, body in definitions(self._family).items()}
        self._mapper = gateway.cls("com.fasterxml.jackson.databind.ObjectMapper")()

    def form(self, fields: tuple[Field, ...], version: int) -> dict[str, Json]:
        wanted = [field for field in fields if field.versions.includes(version)]
        return {
            field.name: self._value(field, version)
            for field in wanted
            if not (field.is_tagged(version) and self.pick.random() < 0.4)
        }

    def _value(self, field: Field, version: int) -> Json:
        if field.nullable and self.pick.random() < 0.3:
            return None
        pick = self.pick
        if field.kind == "[":
            return [self._value(field.parts[0], version) for _ in range(pick.randrange(3))]
        if field.kind == "{":
            return self.form(field.parts, version)
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

    def _message(self, of: tuple[int, str], form: Json, version: int) -> Any:
        node = self._mapper.readTree(json.dumps(form))
        return self.gateway.cls(f"{self._family.package}{self._names[of]}JsonConverter").read(node, version)

    def key(self, kind: int, form: Json = None) -> bytes:
        """A coordinator record's key."""
        form = form or self.form(self.table[kind, "key"].fields, 0)
        tools = self.gateway.cls("org.apache.kafka.common.protocol.MessageUtil")
        return bytes(tools.toCoordinatorTypePrefixedBytes(self._message((kind, "key"), form, 0)))

    def value(self, of: tuple[int, str], version: int, form: Json = None) -> bytes:
        """A coordinator record's value."""
        form = form or self.form(self.table[of].fields, version)
        tools = self.gateway.cls("org.apache.kafka.common.protocol.MessageUtil")
        return bytes(tools.toVersionPrefixedBytes(version, self._message(of, form, version)))


Records = Iterator[tuple[bytes | None, bytes | None]]


def coordinator_records(messages: Messages) -> Records:
    """Keys and values of every type in every version, a tombstone of each, and some that cannot be decoded."""
    for kind in sorted(kind for kind, name in messages.table if name == "key"):
        key, versions = messages.key(kind), messages.table[kind, "value"].versions
        yield key, None
        for version in range(versions.first, versions.last + 1):
            for _ in range(3):
                value = messages.value((kind, "value"), version)
                yield key, value
                yield key, value[: len(value) // 2]
        yield key, b"\x00\x63" + value[2:]
        yield key, b"\x00"
        yield key[: len(key) // 2], value
    yield b"\x00", b""
    yield b"\x7f\x00rest", b""


FRAMES = (b"", b"\x00\x02\x00", b"\x01\x7f\x00", b"\x01\xff\xff\x7f\x00", b"\x02", b"\x80\x80\x80\x80\x7f")


def framed_records(messages: Messages, *, remote: bool = False) -> Records:
    """Values that begin with frame version, type and version of their message; ``remote``: metadata of a remote log."""
    yield from ((None, frame) for frame in FRAMES)
    if not remote:
        # of this one in the metadata of a remote log, Kafka's tool prints a NullPointerException
        yield None, None
    for (kind, name), message in sorted(messages.table.items()):
        for version in range(message.versions.last + 1):
            for number in range(40 if remote else 3):
                form = messages.form(message.fields, version)
                if remote:
                    # most are valid
                    form |= {name: number % 5 - (number == 1) for name in form if name.endswith("State")}
                    if "startOffset" in form and number % 4:
                        form |= {"startOffset": number, "endOffset": number + 1}
                value = bytes((1, kind, version)) + messages.value((kind, name), version, form)[2:]
                yield None, value
        yield from ((None, other) for other in (value[:-1], value + b"more"))
        if remote:
            yield None, value[:2] + b"\x05" + value[3:]


def member_records(messages: Messages) -> Records:
    """Groups whose members have subscriptions and assignments of all versions, which only those of consumers are read as."""
    protocol = Messages(messages.gateway, "consumer protocol", messages.pick)
    key, fields = messages.key(2, {"group": "consumers"}), messages.table[2, "value"].fields
    for version in (0, 3, 4):
        for own in range(4):
            form = messages.form(fields, version) | {"protocolType": "consumer" if own else "connect"}
            member = messages.form(fields[-1].parts[0].parts, version)
            for of in protocol.table:
                raw = protocol.value(of, own)
                member[of[1]] = base64.b64encode(raw if own < 3 else raw[:-1]).decode()
            yield key, messages.value((2, "value"), version, form | {"members": [member]})


def odd_member_records(messages: Messages) -> Records:
    """Assignments of unknown versions, and malformed varints."""
    protocol = Messages(messages.gateway, "consumer protocol", messages.pick)
    key, fields = messages.key(2, {"group": "consumers"}), messages.table[2, "value"].fields
    partitions: list[Json] = [{"topic": "t", "partitions": [1]}]
    for version in (0, 3, 4, 9, -1):
        for held in ([], partitions):
            form = messages.form(fields, 3) | {"protocolType": "consumer"}
            raw = protocol.value((1, "assignment"), 3, {"assignedPartitions": held, "userData": None})
            assignment = base64.b64encode(struct.pack(">h", version) + raw[2:]).decode()
            member = messages.form(fields[-1].parts[0].parts, 3) | {"assignment": assignment}
            yield key, messages.value((2, "value"), 3, form | {"members": [member]})
    yield from ((key, b"\x00\x04" + varint) for varint in (b"\xff" * 5, b"\x80\x81\x82\x83\x84\x01", b"\xff\xff"))


#: a family, and the records of its topic
WRITTEN: Mapping[str, tuple[str, Callable[[Messages], Records]]] = {
    "of groups": ("group", coordinator_records),
    "of transactions": ("transaction", coordinator_records),
    "of share groups": ("share", coordinator_records),
    "of the cluster": ("metadata", framed_records),
    "of a remote log": ("remote log", partial(framed_records, remote=True)),
    "of members": ("group", member_records),
    "of odd members": ("group", odd_member_records),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("what", WRITTEN)
def test_records_that_kafka_writes_are_printed_alike(
    kafka: KafkaDump, tools: Gateway, tmp_path: Path, what: str, seed: int
) -> None:
    family, records_of = WRITTEN[what]
    found = enumerate(records_of(Messages(tools, family, random.Random(seed))))
    made = tuple(Record(offset, T0, key, value) for offset, (key, value) in found)
    assert len(made) > 10
    files = write_segments(tmp_path, iter([(0, Batch(made).encode())]))
    assert agree(kafka, files, FAMILIES[family].option).problems == ()
