"""Segments of every kind for the dump tool: codecs, magics, control batches, unusual values, and damaged versions of them;
Kafka's own dump tool in a JVM that is reused, and the command under test, run on the same files."""

from __future__ import annotations

import io
import random
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
from py4j.protocol import Py4JJavaError

from compaction.cli.parser import Parser
from compaction.commands import dump_log
from compaction.dumping.dump_tool import Dump
from compaction.files.local import LocalFileSystem
from tests.kafka.encode import ABORT, CODECS, COMMIT, Batch, Legacy, Producer, Record, compress, marker
from tests.kafka.gateway import Gateway, unconverted_errors
from tests.oracle.disk import write_partition
from tests.oracle.random_logs import START_MS, Flavour, random_log

T0 = 1_760_000_000_000
#: bytes that are UTF-8, or nearly
TEXTS = (
    b"", b"plain", "grün".encode(), "鍵 🗝".encode(), b"\xff\xfe", b"\xed\xa0\x80 surrogate", b"cut \xf0\x9f\x98", b"\xe2\x82",
    b"\xc0\xaf\xf5\x80\x80\x80", b"\xf4\x90\x80\x80\xe0\x9f\xbf", b"line\nend\r\n\x00\x07", None,
)  # fmt: skip
HEADERS = ((), ((b"trace", b"1"),), ((b"a", None), (b"", b""), ("schlüssel".encode(), b"x"), (b"\xff", b"y")))
_CRC_AT, _ATTRIBUTES_AT = 17, 21


def records(count: int, base: int = 0, step: int = 1) -> tuple[Record, ...]:
    """Records with keys and values of all kinds."""
    return tuple(
        Record(base + i * step, T0 + 1000 * i - 7 * (i % 3), TEXTS[i % 12], TEXTS[(i * 5 + 3) % 12], HEADERS[i % 3])
        for i in range(count)
    )


def legacy_records(count: int, base: int = 0) -> tuple[Record, ...]:
    """The same without headers."""
    return tuple(record._replace(headers=()) for record in records(count, base))


def control(offset: int, key: bytes | None, value: bytes | None) -> bytes:
    """A control batch of one record."""
    return Batch((Record(offset, T0, key, value),), control=True, leader_epoch=3).encode()


def resealed(batch: bytes, at: int, content: bytes) -> bytes:
    """A v2 batch with other bytes at a position, and a matching CRC."""
    changed = bytearray(batch)
    changed[at : at + len(content)] = content
    changed[_CRC_AT:_ATTRIBUTES_AT] = struct.pack(">I", google_crc32c.value(bytes(changed[_ATTRIBUTES_AT:])))
    return bytes(changed)


def message(offset: int, magic: int, attributes: int, rest: bytes) -> bytes:
    """A message of magic 0 or 1 from its parts."""
    body = struct.pack(">bb", magic, attributes) + rest
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def sound_segments() -> Iterator[tuple[int, bytes]]:
    """Base offsets and contents of segments that Kafka's tool dumps completely."""
    for number, codec in enumerate(CODECS):
        yield number, b"".join(_modern(codec))
    for number, codec in enumerate(CODECS[:-1], 10):
        for magic in (0, 1):
            yield number + 10 * magic, b"".join(_legacy(codec, magic))
    yield 40, b"".join(_control())
    yield 41, b"".join(_odd_values())
    yield 42, b""
    yield 43, Batch(records(5)).encode() + Batch(records(5, 10)).encode()[:-3]
    yield 44, Batch(records(5)).encode() + bytes(16)
    yield 45, Batch(records(2)).encode() + bytes(range(1, 18))
    yield 46, b"".join(Batch(records(1, 50 - i), leader_epoch=i).encode() for i in range(20))
    yield 47, b"".join(_failing_crc())


def _modern(codec: str) -> Iterator[bytes]:
    plain = Batch(records(12, 100, 3), codec, leader_epoch=7)
    yield plain.encode()
    yield replace(plain, base_offset=90, last_offset=160, records=records(1, 120)).encode()
    yield replace(plain, log_append_time=T0 + 5, records=records(3, 200)).encode()
    yield replace(plain, producer_id=2**40, producer_epoch=9, base_sequence=2**31 - 2, records=records(4, 210)).encode()
    yield replace(plain, producer_id=4, producer_epoch=0, base_sequence=0, transactional=True, records=records(2, 220)).encode()
    yield replace(plain, delete_horizon=T0 + 99, records=records(3, 230)).encode()
    yield replace(plain, records=(Record(240, -1, b"k", b"v" * 70_000),)).encode()


def _legacy(codec: str, magic: int) -> Iterator[bytes]:
    yield Legacy(legacy_records(9, 300), magic, codec).encode()
    yield Legacy(legacy_records(2, 400), magic, codec, log_append_time=T0 + 77).encode()
    yield Legacy((Record(500, T0, None, None),), magic, codec).encode()
    if codec != "none":
        inner = Legacy(legacy_records(4, 0), 1 - magic).encode()
        value = compress(codec, inner + inner[:20], magic=magic)
        time = struct.pack(">q", T0 + 1) if magic else b""
        for offset, flags in ((600, 0), (0, 8)):
            yield message(offset, magic, CODECS.index(codec) | flags, time + struct.pack(">ii", -1, len(value)) + value)


def _control() -> Iterator[bytes]:
    yield marker(0, T0, Producer(9, 1), COMMIT, coordinator_epoch=12)
    yield marker(1, T0, Producer(9, 1), ABORT, coordinator_epoch=-1)
    yield control(2, struct.pack(">hh", 0, 77), b"anything")
    yield control(3, struct.pack(">hh", 5, 1) + b"more", struct.pack(">hi", 9, 4) + b"more")
    yield control(4, struct.pack(">hh", 0, -1), None)
    leader = struct.pack(">hi", 0, 8) + b"\x02" + struct.pack(">i", 8) + b"\x00" + b"\x01" + b"\x00"
    yield control(5, struct.pack(">hh", 0, 2), leader)
    yield control(6, struct.pack(">hh", 0, 2), struct.pack(">h", 1) + leader[2:])
    yield control(7, struct.pack(">hh", 0, 3), struct.pack(">hq", 0, T0) + b"\x00")
    yield control(8, struct.pack(">hh", 0, 4), struct.pack(">h", 0) + b"\x00")
    yield control(9, struct.pack(">hh", 0, 5), struct.pack(">hh", 0, 1) + b"\x00")
    endpoint = b"\x09INTERNAL\x0a127.0.0.1" + struct.pack(">H", 65_000) + b"\x00"
    voter = struct.pack(">i", 3) + bytes(range(16)) + b"\x02" + endpoint + struct.pack(">hh", 0, 1) + b"\x00" + b"\x00"
    yield control(10, struct.pack(">hh", 0, 6), struct.pack(">h", 0) + b"\x02" + voter + b"\x00")
    yield Batch((), base_offset=11, last_offset=20, control=True, producer_id=5, producer_epoch=2).encode()


def _odd_values() -> Iterator[bytes]:
    yield Batch((), base_offset=0, last_offset=9, max_timestamp=T0, producer_id=1, producer_epoch=1, base_sequence=0).encode()
    batch = Batch(records(3, 20), producer_id=-5, producer_epoch=-2, base_sequence=7, leader_epoch=-1).encode()
    yield batch
    yield resealed(batch, 0, struct.pack(">q", 2**63 - 2))
    yield resealed(batch, 0, struct.pack(">q", -(2**63)))
    for delta in (-1, 2**31 - 1, -(2**31)):
        for sequence in (0, -7, 2**31 - 1):
            changed = resealed(batch, 23, struct.pack(">i", delta))
            yield resealed(changed, 53, struct.pack(">i", sequence))
    yield resealed(batch, 27, struct.pack(">q", 2**63 - 1))
    yield resealed(batch, 21, b"\xff\x80")
    # an unknown, higher magic is read as the current one
    yield batch[:16] + b"\x03" + batch[17:]
    # by its count it is empty, whatever follows
    yield resealed(Batch(records(3, 30), "gzip").encode(), 57, bytes(4))


def _failing_crc() -> Iterator[bytes]:
    good = Batch(records(3, 40)).encode()
    yield good[:17] + bytes(4) + good[21:]
    yield good
    old = Legacy(legacy_records(1, 50), 1).encode()
    yield old[:12] + bytes(4) + old[16:]


def damaged_segments() -> Iterator[tuple[str, bytes]]:
    """Segments at which Kafka's tool fails, by the name of their defect."""
    good = Batch(records(6)).encode()
    packed = Batch(records(6), "zstd").encode()
    time = struct.pack(">q", T0)
    yield "a size of zero", good + bytes(100)
    yield "a negative size", good + struct.pack(">qi", 6, -5) + bytes(50)
    yield "an unknown codec", good + resealed(good, 21, struct.pack(">h", 6))
    yield "a negative magic", good + good[:16] + b"\xff" + good[17:]
    yield "a header that the file cuts", good + struct.pack(">qiib", 6, 20, 0, 2) + bytes(20)
    yield "too few records", good + resealed(good, 57, struct.pack(">i", 7))
    yield "too many records", good + resealed(good, 57, struct.pack(">i", 2))
    yield "a negative count", good + resealed(good, 57, struct.pack(">i", -2))
    yield "too few packed records", good + resealed(packed, 57, struct.pack(">i", 7))
    yield "too many packed records", good + resealed(packed, 57, struct.pack(">i", 2))
    yield "a record that is longer than the batch", good + resealed(good, 61, b"\xfe\xff\x03")
    yield "a payload that is not packed", good + resealed(good, 21, struct.pack(">h", 4))
    yield "a torn payload", good + resealed(packed, 80, bytes(9))
    yield "a v2 batch of a message's size", good + struct.pack(">qiib", 6, 30, 0, 2) + bytes(100)
    yield "a control record without a key", good + control(6, None, b"")
    yield "a control record with a short key", good + control(6, b"\x00\x00\x00", b"")
    yield "a control record of a negative version", good + control(6, struct.pack(">hh", -1, 0), struct.pack(">hi", 0, 0))
    yield "a marker without a value", good + control(6, struct.pack(">hh", 0, 1), None)
    yield "a marker with a short value", good + control(6, struct.pack(">hh", 0, 1), b"\x00\x00\x00")
    yield "a leader change that ends early", good + control(6, struct.pack(">hh", 0, 2), b"\x00\x00\x00\x00")
    yield "a message without room for its key", good + message(6, 1, 0, time)
    yield "a message without room for its value", good + message(6, 1, 0, time + struct.pack(">i", 100))
    yield "a message whose value runs past it", good + message(6, 1, 0, time + struct.pack(">iii", 4, 1, 100))
    yield "a wrapper without a value", good + message(6, 1, 1, time + struct.pack(">ii", -1, -1))
    for name, inner in (
        ("nothing", b""),
        ("a torn message", Legacy(legacy_records(1), 1).encode()[:-1]),
        ("a message of an impossible size", struct.pack(">qi", 0, 3) + bytes(20)),
        ("a packed message", message(0, 1, 2, time + struct.pack(">ii", -1, 0))),
        ("a message without a timestamp", message(0, 1, 0, bytes(8))),
        ("offsets past its own", Legacy(legacy_records(1, 9), 1).encode()),
    ):
        value = compress("gzip", inner)
        yield f"a wrapper with {name}", good + message(6, 1, 1, time + struct.pack(">ii", -1, len(value)) + value)
    value = compress("zstd", Legacy(legacy_records(2), 1).encode())
    yield "a wrapper packed with zstd", good + message(6, 1, 4, time + struct.pack(">ii", -1, len(value)) + value)


def write_segments(directory: Path, segments: Iterator[tuple[int, bytes]]) -> list[Path]:
    """The segments as files, named by their base offsets."""
    paths = []
    for base, content in segments:
        paths.append(directory / f"{base:020d}.log")
        paths[-1].write_bytes(content)
    return paths


def random_files(directory: Path, seed: int) -> list[Path]:
    """The files of the random log of a seed, with batches of all kinds that Kafka reads; in some a few bits are changed."""
    rng = random.Random(seed)
    flavour = Flavour(
        batches=30,
        codecs=rng.choice(((0,), (1,), (2,), (3,), (4,), (0, 1, 2, 3, 4))),
        magics=rng.choice(((2,), (0, 1, 2), (0, 1))),
        odd=rng.choice((0.0, 0.3, 0.8)),
        stated=rng.choice((0.0, 0.5)),
        spoiled=rng.choice((0.0, 0.2)),
        far=rng.choice((0.0, 0.5)),
    )
    write_partition(directory / "t-0", random_log(seed, flavour, rng.choice((START_MS, 4_000, 2**62))).segments)
    files = sorted((directory / "t-0").iterdir())
    harmed = rng.choice(files)
    content = bytearray(harmed.read_bytes())
    for _ in range(rng.choice((0, 0, 1, 3)) if content else 0):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    harmed.write_bytes(content)
    return files


KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
DEPTHS: tuple[tuple[str, ...], ...] = (
    (),
    ("--deep-iteration",),
    ("--print-data-log",),
    ("--print-data-log", "--skip-record-metadata"),
    ("--deep-iteration", "--skip-record-metadata"),
    ("--print-data-log", "--max-bytes", "700"),
    ("--value-decoder-class", "--max-bytes", "2147483647"),
)


class Dumped(NamedTuple):
    """The output of a tool, and whether it completed. ``problems`` are the lines that only the command under test prints."""

    out: bytes
    err: str
    finished: bool
    problems: tuple[str, ...] = ()


class KafkaDump:
    """``DumpLogSegments``, with its streams captured."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._system = gateway.cls("java.lang.System")

    def run(self, files: Sequence[Path], *options: str) -> Dumped:
        """Its output for ``files``; it raises if a file is damaged."""
        before = self._system.out, self._system.err
        out, err = self._stream(), self._stream()
        arguments = self._gateway.array("java.lang.String", ["--files", ",".join(map(str, files)), *options])
        self._system.setOut(out[1])
        self._system.setErr(err[1])
        finished = True
        try:
            with unconverted_errors():
                self._gateway.cls("org.apache.kafka.tools.DumpLogSegments").main(arguments)
        except Py4JJavaError:
            finished = False
        finally:
            self._system.setOut(before[0])
            self._system.setErr(before[1])
        return Dumped(bytes(out[0].toByteArray()), bytes(err[0].toByteArray()).decode(), finished)

    def _stream(self) -> tuple[Any, Any]:
        held = self._gateway.cls("java.io.ByteArrayOutputStream")()
        return held, self._gateway.cls("java.io.PrintStream")(held, True, "UTF-8")


def our_dump(files: Sequence[Path], *options: str) -> Dumped:
    """The output of the command under test for ``files``."""
    given = Parser(dump_log.OPTIONS).parse_args(["--files", *map(str, files), *options])
    request = dump_log.read_request(given.files, dump_log.OPTIONS.complete(vars(given)))
    out, lines, problems = io.BytesIO(), list[str](), list[str]()
    sound = Dump(LocalFileSystem(), request, out, lines.append, problems.append).run(str(Path.cwd()))
    assert sound == (not problems)
    return Dumped(out.getvalue(), "".join(f"{line}\n" for line in lines), True, tuple(problems))


def agree(kafka: KafkaDump, files: Sequence[Path], *options: str) -> Dumped:
    """Both print the same for ``files``; returns the output of the command under test."""
    ours = agree_up_to_the_damage(kafka, files, *options)
    assert ours.finished
    return ours


def agree_up_to_the_damage(kafka: KafkaDump, files: Sequence[Path], *options: str, zeros: bool = False) -> Dumped:
    """Both print the same until Kafka's tool fails, and one error line says why; or neither fails. Kafka's fails at the
    ``zeros`` of a preallocated end, where ours says how many bytes they are."""
    theirs, ours = kafka.run(files, *options), our_dump(files, *options)
    if theirs.finished:
        assert (ours.out, ours.err) == (theirs.out, theirs.err)
    elif zeros and (said := ours.out.removeprefix(theirs.out.removesuffix(b"\n")).strip()):
        assert re.fullmatch(rb"Found \d+ invalid bytes at the end of \d+\.log", said), said
    else:
        assert ours.out.removesuffix(b"\n") == theirs.out.removesuffix(b"\n")
        assert len(ours.problems) >= 1
        assert "\n" not in ours.problems[0]
    return ours._replace(finished=theirs.finished)


def agree_on_all(kafka: KafkaDump, files: Sequence[Path]) -> None:
    """Both print the same for each of these files, at every depth, up to a damage."""
    for file in files:
        for options in DEPTHS:
            agree_up_to_the_damage(kafka, [file], *options)
