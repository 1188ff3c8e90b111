"""The dump command compared with Kafka's own dump tool, on the same files, character for character."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compaction.dumping.dump_tool import find_timestamp, start_position
from compaction.dumping.targets import Target
from compaction.files.local import LocalFileSystem
from compaction.formats.java_text import java_text
from tests.conformance.dump_files import T0, TEXTS, damaged_segments, random_files, records, sound_segments, write_segments
from tests.conformance.dump_tool import DEPTHS, KINDS, KafkaDump, agree, agree_on_all, agree_up_to_the_damage, our_dump
from tests.golden import unpack_sample
from tests.kafka.encode import Batch
from tests.kafka.gateway import Gateway
from tests.kafka.jars import KAFKA_TOOLS, TOOLS_RELEASE
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

    def test_paths_are_shown_as_java_shows_them(
        self, kafka: KafkaDump, tools: Gateway, sample: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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


def small_log(tools: Gateway, directory: Path, batches: int = 90) -> Path:
    path = directory / "wide-0"
    path.mkdir()
    made = []
    for i in range(batches):
        held = tuple(r._replace(value=bytes(700), timestamp=T0 + 40 * i + 7 * (n % 3)) for n, r in enumerate(records(4, 4 * i)))
        stamp = T0 + 40 * i + 30 if i % 7 == 0 else None
        made.append(Batch(held, ("none", "lz4", "none", "gzip")[i % 4], log_append_time=stamp))
    with KafkaLog(tools, path, Opening(now_ms=T0 + 10**6)) as log:
        for batch in made:
            log.append(batch.encode())
    return path


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
    return small_log(tools, tmp_path_factory.mktemp("indexes"))


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
