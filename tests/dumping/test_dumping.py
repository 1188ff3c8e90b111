"""The text and the JSON lines of a segment say the same, whatever the sizes of buffers; offsets and timestamps found by
index are those that a scan of all records finds; findings are in the order of Kafka's maps; memory is bounded.

Text is that of Kafka's tool (``tests/conformance/test_dump.py``). Each JSON line is turned back into it, for segments of
every kind; ``tests/commands/calls/dump_log.txt`` has lines of findings, lookups and checks.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compaction.commands import dump_log
from compaction.dumping import batch_reader
from compaction.dumping.batch_reader import BatchReader
from compaction.dumping.dump_tool import find_timestamp, may_hold, segments_with, start_position
from compaction.dumping.findings import PairSpool, Row, java_order
from compaction.dumping.record_decoders import decode_offsets, decode_with, text_decoder
from compaction.dumping.segment_dump import SegmentDump, SegmentView
from compaction.dumping.targets import Target
from compaction.errors import CorruptLogError, LogError, UnsupportedLogError
from compaction.files.local import LocalFileSystem
from compaction.formats.java_text import java_text, json_text
from tests.conformance.dump_files import damaged_segments, sound_segments
from tests.conftest import ROOT
from tests.dumping.segments import T0, Made, write_partition, write_segment
from tests.golden import unpack_sample
from tests.kafka.encode import Batch, Record

FILES = LocalFileSystem()
VIEWS = {
    "batches": SegmentView(),
    "records": SegmentView(deep=True),
    "contents": SegmentView(deep=True, contents=True),
}
Object = dict[str, Any]
BATCH_FIELDS = (
    "baseOffset", "lastOffset", "count", "baseSequence", "lastSequence", "producerId", "producerEpoch",
    "partitionLeaderEpoch", "isTransactional", "isControl",
)  # fmt: skip


class Shown:
    """The result of a dump: its text, the gaps, and the error that ended it."""

    def __init__(self, path: Path, view: SegmentView, json_file: str | None = None) -> None:
        self.gaps: list[tuple[int, int]] = []
        self.dump = SegmentDump(FILES, str(path), view, lambda *gap: self.gaps.append(gap), json_file)
        pieces, self.error = [], ""
        try:
            for text in self.dump:
                pieces.append(text)
        except LogError as error:
            self.error = error.describe()
        self.text = "".join(pieces)

    def offsets(self) -> list[int]:
        return [int(found) for found in re.findall(r"^\| offset: (-?\d+)", self.text, re.MULTILINE)]

    def batches(self) -> list[int]:
        return [int(found) for found in re.findall(r" position: (\d+)", self.text)]

    def objects(self) -> list[Object]:
        """Of JSON lines, which are ASCII."""
        assert self.text.isascii()
        assert self.text == "" or self.text.endswith("\n")
        return [json.loads(line) for line in self.text.splitlines()]


def shown_as_json(path: Path, view: SegmentView) -> Shown:
    return Shown(path, view, "/f")


def java(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def data_text(data: Object | None) -> str | None:
    """What Kafka's tool prints of a key or value."""
    if data is None:
        return None
    ((kind, value),) = data.items()
    if kind == "base64":
        raw = base64.b64decode(value)
        with pytest.raises(UnicodeDecodeError):
            raw.decode()
        return java_text(raw)
    return json_text(value) if kind == "json" else str(value)


def batch_text(row: Object) -> str:
    """The line of a batch."""
    v2 = " ".join(f"{name}: {java(row[name])}" for name in BATCH_FIELDS)
    horizon = "OptionalLong.empty" if row["deleteHorizonMs"] is None else f"OptionalLong[{row['deleteHorizonMs']}]"
    head = f"{v2} deleteHorizonMs: {horizon}" if row["baseOffset"] is not None else f"offset: {row['lastOffset']}"
    return (
        f"{head} position: {row['position']} {row['timestampType']}: {row['maxTimestamp']} size: {row['size']}"
        f" magic: {row['magic']} compresscodec: {row['compresscodec']} crc: {row['crc']} isvalid: {java(row['isvalid'])}"
    )


def record_text(row: Object) -> str:
    """The line of a record."""
    line = (
        f"| offset: {row['offset']} {row['timestampType']}: {row['timestamp']} keySize: {row['keySize']}"
        f" valueSize: {row['valueSize']}"
    )
    if "crc" in row:
        line += f" isValid: {java(row['isValid'])} crc: {row['crc']}"
    else:
        line += f" sequence: {row['sequence']} headerKeys: [{','.join(row['headerKeys'])}]"
    return line + control_text(row["control"]) if "control" in row else line + contents_text(row)


def contents_text(row: Object) -> str:
    parts = [(label, data_text(row.get(name))) for label, name in (("key", "key"), ("payload", "value"))]
    return "".join(f" {label}: {text}" for label, text in parts if text is not None)


def control_text(control: Object) -> str:
    name, message = control["type"], control["message"]
    if message is None:
        return f" controlType: {name}"
    if name in ("COMMIT", "ABORT"):
        return f" endTxnMarker: {name} coordinatorEpoch: {message['coordinatorEpoch']}"
    return f" {name}{':' if name == 'LeaderChange' else ''} {json_text(message)}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.log"


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_json_says_what_the_text_says_and_the_sizes_of_windows_and_tables_do_not_change_it(
    path: Path, view: SegmentView, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (_, content) in enumerate((*sound_segments(), *damaged_segments())):
        path.write_bytes(content)
        monkeypatch.undo()
        whole, lines = Shown(path, view), shown_as_json(path, view)
        assert lines.error == whole.error
        rows = lines.objects()
        assert {row["file"] for row in rows} <= {"/f"}
        expected = "".join(f"{(batch_text if row['type'] == 'batch' else record_text)(row)}\n" for row in rows)
        # where a batch or record cannot be read, the text has the fields before the defect
        assert expected == whole.text if not whole.error else whole.text.startswith(expected)
        assert len(whole.text) - len(expected) < 400
        monkeypatch.setattr(batch_reader, "WINDOW_BYTES", 64 + 13 * (number % 9))
        monkeypatch.setattr(batch_reader, "TABLE_RECORDS", 1 + number % 4)
        pieces = Shown(path, view)
        assert (pieces.text, pieces.gaps, pieces.error) == (whole.text, whole.gaps, whole.error)
        assert (pieces.dump.position, pieces.dump.invalid) == (whole.dump.position, whole.dump.invalid)


def test_decoders_give_messages_as_json_and_numbers_as_text(path: Path) -> None:
    key = b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03"
    path.write_bytes(Batch((Record(0, T0, key, None), Record(1, T0, b"\x7f\xff", b"x"))).encode())
    found = shown_as_json(path, SegmentView(deep=True, contents=True, decoder=decode_offsets))
    _, committed, unknown = found.objects()
    assert committed["key"] == {"json": {"type": "1", "data": {"group": "g", "topic": "t", "partition": 3}}}
    assert (committed["value"], found.error) == (None, "")
    assert unknown["key"] == {"text": "Unknown record type 32767 at offset 1, skipping."}
    numbers = SegmentView(True, True, decoder=decode_with(text_decoder("IntegerDecoder"), text_decoder("StringDecoder")))
    for value, shown in ((b"{not json", {"text": "{not json"}), (b"\xff{}", {"base64": "/3t9"})):
        path.write_bytes(Batch((Record(0, T0, b"\x00\x00\x00\x07", value),)).encode())
        _, record = shown_as_json(path, numbers).objects()
        assert (record["key"], record["value"]) == ({"text": "7"}, shown)


def test_headers_have_values_if_contents_are_printed(path: Path) -> None:
    headers = ((b"trace", b"1"), (b"trace", b"\xff\x00"), (b"none", None))
    path.write_bytes(Batch((Record(0, T0, b"k", b"v", headers),)).encode())
    for contents, expected in ((True, [{"text": "1"}, {"base64": "/wA="}, None]), (False, None)):
        _, record = shown_as_json(path, SegmentView(True, contents)).objects()
        assert record["headerKeys"] == ["trace", "trace", "none"]
        assert record.get("headerValues") == expected


def test_every_line_of_a_brokers_log_is_documented(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    sample = unpack_sample(tmp_path)
    logs = [str(log) for log in sample.iterdir() if log.is_dir() and not log.name.startswith("__cluster")]
    assert dump_log.main(["--files", *logs, "--print-data-log", "--output", "jsonl"]) == 0
    rows = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    types = {row["type"] for row in rows}
    assert {"file", "batch", "record", "offsetIndexEntry", "timeIndexEntry", "abortedTransaction", "producer"} <= types
    documented = documented_fields()
    for row in rows:
        assert set(row) - {"type", "file"} <= documented[row["type"]], row
    assert {row["file"] for row in rows if row["type"] == "producer"} <= {str(path) for path in sample.rglob("*.snapshot")}


def documented_fields() -> dict[str, set[str]]:
    """The fields of each type of line, by the tables of the document."""
    text = (ROOT / "docs" / "dump-jsonl.md").read_text()
    fields: dict[str, set[str]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        types = re.findall(r"`(\w+)`", section.splitlines()[0])
        named = {name for row in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
        for each in types:
            fields[each] = named
    return fields


def test_names_that_are_no_utf8_can_be_told_apart() -> None:
    names = [Row("empty", {}).json(name) for name in ("/log\udcff", "/log\udcfe")]
    assert len(set(names)) == 2


def test_an_unreadable_batch_leaves_complete_lines(tmp_path: Path) -> None:
    made = write_segment(tmp_path / "one-0")
    content = bytearray(made.path.read_bytes())
    content[made.positions[5] + 8 : made.positions[5] + 12] = b"\x7f\xff\xff\xff"
    content[made.positions[6] :] = b""
    made.path.write_bytes(bytes(content))
    shown = shown_as_json(made.path, SegmentView(deep=True))
    assert [row["position"] for row in shown.objects() if row["type"] == "batch"] == list(made.positions[:5])
    assert shown.dump.position == made.positions[5]


def test_a_file_truncated_while_reading_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_reader, "WINDOW_BYTES", 100)
    made = write_segment(tmp_path, batches=9)
    pieces = iter(SegmentDump(FILES, str(made.path), SegmentView(), lambda first, second: None))
    next(pieces)
    made.path.write_bytes(made.path.read_bytes()[: made.positions[3] + 5])
    with pytest.raises(CorruptLogError, match="was truncated"):
        list(pieces)


class TestNarrowing:
    @pytest.mark.parametrize("codec", ["none", "zstd"])
    @pytest.mark.parametrize(("first", "last"), [(0, 0), (7, 31), (8, 8), (9, 9), (90, None), (95, 400), (200, 300), (0, None)])
    def test_only_batches_and_records_in_the_range_are_printed(
        self, tmp_path: Path, codec: str, first: int, last: int | None
    ) -> None:
        made = write_segment(tmp_path, codec=codec)
        shown = Shown(made.path, SegmentView(deep=True, first_offset=first, last_offset=last))
        end = 10**9 if last is None else last
        assert shown.offsets() == [record.offset for record in made.records if first <= record.offset <= end]
        wanted = [made.positions[i] for i in range(12) if 8 * i + 6 >= first and 8 * i <= end]
        assert shown.batches() == wanted

    def test_an_offset_range_starts_without_a_gap(self, tmp_path: Path) -> None:
        made = write_segment(tmp_path)
        assert Shown(made.path, SegmentView(deep=True)).gaps[0] == (0, 2)
        assert Shown(made.path, SegmentView(deep=True, first_offset=8, last_offset=12)).gaps == [(8, 10), (10, 12)]

    def test_a_batch_beyond_max_bytes_is_not_printed(self, tmp_path: Path) -> None:
        made = write_segment(tmp_path)
        assert len(Shown(made.path, SegmentView(max_bytes=made.positions[5])).batches()) == 5
        assert len(Shown(made.path, SegmentView(max_bytes=made.positions[5] - 1)).batches()) == 4
        assert Shown(made.path, SegmentView(max_bytes=0)).text == ""


def test_a_batch_of_two_gib_is_refused_without_reading_it(tmp_path: Path) -> None:
    """A sparse file: what its length field says lies within it."""
    path, start = tmp_path / f"{0:020d}.log", 2**31 + 4096
    raw = bytearray(Batch([Record(0, T0, b"k", b"v")]).encode())
    raw[8:12] = (2**31 - 1).to_bytes(4, "big")
    with path.open("wb") as file:
        file.seek(start)
        file.write(raw)
        file.truncate(start + 2**31 + 100)
    target = Target.of(str(path), "/")
    with pytest.raises(UnsupportedLogError, match=f"at byte {start}: batch of 2147483659 bytes, more than 268435456"):
        list(SegmentDump(FILES, str(path), SegmentView(start=start), lambda first, second: None))
    with pytest.raises(UnsupportedLogError, match="batch of 2147483659 bytes"):
        reader = BatchReader(FILES, str(path))
        batch = reader.batch_at(start, reader.size)
        assert batch is not None
        reader.largest_timestamp(batch)
    with path.open("rb+") as file:
        file.write(raw)
    with pytest.raises(UnsupportedLogError, match="at byte 0: batch of 2147483659 bytes"):
        find_timestamp(FILES, target, 0)


def test_memory_does_not_grow_with_the_segment(tmp_path: Path) -> None:
    batch = Batch(tuple(Record(i, T0, b"k%d" % i, bytes(range(97, 122)) * 4) for i in range(100))).encode()
    peaks = []
    for megabytes in (8, 96):
        path = tmp_path / f"{megabytes:020d}.log"
        raw = np.frombuffer(batch, np.uint8)
        with path.open("wb") as file:
            for _ in range(megabytes):
                file.write(np.tile(raw, (1 << 20) // len(raw)).tobytes())
        run = (
            "import resource, sys; from compaction.commands import dump_log; dump_log.main(sys.argv[1:]); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
        )
        command = [sys.executable, "-c", run, "--files", str(path), "--print-data-log"]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
        peaks.append(int(done.stderr.splitlines()[-1]))
        path.unlink()
    assert peaks[1] < peaks[0] + 40_000


def target(made: Made) -> Target:
    return Target.of(str(made.path), "/")


@pytest.fixture(params=["none", "gzip"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    return write_segment(tmp_path, 1000, batches=20, codec=request.param)


@pytest.mark.parametrize("harm", ["missing", "empty", "garbled", "of another log"])
def test_a_malformed_index_is_not_used(made: Made, harm: str, tmp_path: Path) -> None:
    index = made.path.with_suffix(".index")
    other = write_segment(tmp_path / "other", 1000, batches=20, count=3).path.with_suffix(".index")
    contents = {"empty": b"", "garbled": index.read_bytes()[4:12] * 3, "of another log": other.read_bytes()}
    assert start_position(FILES, target(made), 1150) == made.positions[18]
    index.unlink()
    if harm in contents:
        index.write_bytes(contents[harm])
    assert start_position(FILES, target(made), 1150) == 0


class TestTimes:
    @pytest.mark.parametrize("block", [64, 200, 1000, None])
    def test_the_first_record_at_or_after_a_time_is_found_with_and_without_indexes_by_blocks_of_any_size(
        self, made: Made, block: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if block:
            monkeypatch.setattr(batch_reader, "WINDOW_BYTES", block)
        times = range(T0 + 9_900, T0 + 11_700, 5)
        firsts = [next((record for record in made.records if record.timestamp >= time), None) for time in times]
        expected = [first and (first.offset, first.timestamp) for first in firsts]
        found = [find_timestamp(FILES, target(made), time) for time in times]
        assert [each and (each.offset, each.timestamp) for each in found] == expected
        for index in (".timeindex", ".index"):
            made.path.with_suffix(index).unlink()
        again = [find_timestamp(FILES, target(made), time) for time in times]
        assert [each and each[1:] for each in again] == [each and each[1:] for each in found]

    def test_the_search_skips_what_the_index_rules_out(self, made: Made) -> None:
        found = find_timestamp(FILES, target(made), made.records[-1].timestamp)
        assert found is not None
        assert (found.start, found.position) == (made.positions[18], made.positions[19])

    def test_a_torn_tail_has_no_times(self, made: Made) -> None:
        made.path.with_suffix(".timeindex").unlink()
        made.path.write_bytes(made.path.read_bytes()[:-3])
        assert find_timestamp(FILES, target(made), made.records[-1].timestamp) is None
        assert find_timestamp(FILES, target(made), made.records[-5].timestamp) is not None

    def test_damage_in_scanned_batches_is_an_error_with_a_position(self, made: Made) -> None:
        content = bytearray(made.path.read_bytes())
        content[made.positions[1] + 16] = 9
        made.path.write_bytes(bytes(content))
        made.path.with_suffix(".timeindex").unlink()
        with pytest.raises(CorruptLogError) as caught:
            find_timestamp(FILES, target(made), made.records[-1].timestamp)
        assert caught.value.position == made.positions[1]

    def test_a_time_index_excludes_later_timestamps(self, made: Made) -> None:
        assert may_hold(FILES, target(made), T0)
        assert not may_hold(FILES, target(made), made.records[-1].timestamp + 1)
        made.path.with_suffix(".timeindex").unlink()
        assert may_hold(FILES, target(made), made.records[-1].timestamp + 1)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 0, [0]),
        (199, 199, [0]),
        (200, 200, [1]),
        (150, 450, [0, 1, 2]),
        (450, None, [2]),
        (10**6, 10**6 + 1, [2]),
        (0, None, [0, 1, 2]),
    ],
)
def test_segments_are_chosen_by_their_base_offsets(tmp_path: Path, first: int, last: int | None, expected: list[int]) -> None:
    logs = [target(made) for made in write_partition(tmp_path / "orders-0")]
    assert segments_with(logs, first, last) == [logs[number] for number in expected]


def test_paths_are_in_the_order_of_a_java_map() -> None:
    # hash codes of one-letter strings are their letters; a table of 16 places takes 13 of them, then 32 places are needed
    few = dict.fromkeys("qpab")
    assert [name for name, _ in java_order(few)] == ["p", "a", "q", "b"]
    many = {chr(97 + number): None for number in range(14)}
    assert [name for name, _ in java_order(many)] == sorted(many)


@pytest.mark.parametrize("memory_pairs", [1 << 20, 4], ids=["in memory", "in a file"])
def test_increasing_pairs_are_returned_unchanged_others_sorted_and_the_last_of_equal_ones(memory_pairs: int) -> None:
    with closing(PairSpool(memory_pairs)) as spool:
        empty = [spool.empty]
        assert list(spool) == []
        for number in range(200_000):
            spool.append(number, number % 50_000)
        assert [*empty, spool.empty] == [True, False]
        for _ in range(2):
            assert list(spool) == [(number, number % 50_000) for number in range(200_000)]
    with closing(PairSpool(memory_pairs)) as spool:
        for pair in ((5, 1), (9, 2), (5, 3), (-(2**63), 4)):
            spool.append(*pair)
        assert list(spool) == [(-(2**63), 4), (5, 3), (9, 2)]
