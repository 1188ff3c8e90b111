"""JSON lines say what the text says: each is turned back into the text of Kafka's tool, for segments of every kind."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compaction.commands import dump_log
from compaction.dumping.findings import Row
from compaction.dumping.record_decoders import decode_offsets, decode_with, text_decoder
from compaction.dumping.segment_dump import JsonSegmentDump, SegmentDump, SegmentView
from compaction.errors import CorruptLogError, LogError
from compaction.files.local import LocalFileSystem
from compaction.formats.java_text import java_text, json_text
from tests.conformance.dump_files import damaged_segments, sound_segments
from tests.dumping.segments import T0, write_partition, write_segment
from tests.golden import unpack_sample
from tests.kafka.encode import Batch, Record

ROOT = Path(__file__).resolve().parents[2]
FILES = LocalFileSystem()
Object = dict[str, Any]
BATCH_FIELDS = (
    "baseOffset", "lastOffset", "count", "baseSequence", "lastSequence", "producerId", "producerEpoch",
    "partitionLeaderEpoch", "isTransactional", "isControl",
)  # fmt: skip


def objects(text: str) -> list[Object]:
    """The objects of lines, which are ASCII."""
    assert text.isascii()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def dumped(dump: SegmentDump) -> tuple[str, str]:
    """The text of a dump and the error that ended it."""
    held, error = [], ""
    try:
        for text in dump:
            held.append(text)
    except LogError as failure:
        error = failure.describe()
    return "".join(held), error


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


def lines_of(found: list[Object]) -> Iterator[str]:
    for row in found:
        yield (batch_text if row["type"] == "batch" else record_text)(row)


@pytest.mark.parametrize("view", [SegmentView(), SegmentView(deep=True), SegmentView(deep=True, contents=True)])
def test_batches_and_records_say_what_the_text_says(tmp_path: Path, view: SegmentView) -> None:
    path = tmp_path / "00000000000000000000.log"
    for content in [content for _, content in (*sound_segments(), *damaged_segments())]:
        path.write_bytes(content)
        text, error = dumped(SegmentDump(FILES, str(path), view, lambda *_: None))
        found, failure = dumped(JsonSegmentDump("/f", FILES, str(path), view, lambda *_: None))
        assert failure == error
        rows = objects(found)
        assert {row["file"] for row in rows} <= {"/f"}
        expected = "".join(f"{line}\n" for line in lines_of(rows))
        # where a batch or record cannot be read, the text has the fields before the defect
        assert expected == text if not error else text.startswith(expected)
        assert len(text) - len(expected) < 400


def test_decoders_give_messages_as_json_and_numbers_as_text(tmp_path: Path) -> None:
    key = b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03"
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(Batch((Record(0, T0, key, None), Record(1, T0, b"\x7f\xff", b"x"))).encode())
    view = SegmentView(deep=True, contents=True, decoder=decode_offsets)
    found, error = dumped(JsonSegmentDump("/f", FILES, str(path), view, lambda *_: None))
    _, committed, unknown = objects(found)
    assert committed["key"] == {"json": {"type": "1", "data": {"group": "g", "topic": "t", "partition": 3}}}
    assert (committed["value"], error) == (None, "")
    assert unknown["key"] == {"text": "Unknown record type 32767 at offset 1, skipping."}

    path.write_bytes(Batch((Record(0, T0, b"\x00\x00\x00\x07", b"{not json"),)).encode())
    numbers = decode_with(text_decoder("IntegerDecoder"), text_decoder("StringDecoder"))
    found, _ = dumped(JsonSegmentDump("/f", FILES, str(path), SegmentView(True, True, decoder=numbers), lambda *_: None))
    assert [objects(found)[1][name] for name in ("key", "value")] == [{"text": "7"}, {"text": "{not json"}]
    path.write_bytes(Batch((Record(0, T0, b"\x00\x00\x00\x07", b"\xff{}"),)).encode())
    found, _ = dumped(JsonSegmentDump("/f", FILES, str(path), SegmentView(True, True, decoder=numbers), lambda *_: None))
    assert objects(found)[1]["value"] == {"base64": "/3t9"}


def test_headers_have_values_if_contents_are_printed(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    headers = ((b"trace", b"1"), (b"trace", b"\xff\x00"), (b"none", None))
    path.write_bytes(Batch((Record(0, T0, b"k", b"v", headers),)).encode())
    for contents, expected in ((True, [{"text": "1"}, {"base64": "/wA="}, None]), (False, None)):
        found, _ = dumped(JsonSegmentDump("/f", FILES, str(path), SegmentView(True, contents), lambda *_: None))
        assert objects(found)[1]["headerKeys"] == ["trace", "trace", "none"]
        assert objects(found)[1].get("headerValues") == expected


class TestCommand:
    @pytest.fixture
    def run(self, capfdbinary: pytest.CaptureFixture[bytes]) -> Any:
        def call(*argv: object) -> tuple[int, list[Object], str]:
            code = dump_log.main([*map(str, argv), "--output", "jsonl"])
            captured = capfdbinary.readouterr()
            return code, objects(captured.out.decode()), captured.err.decode()

        return call

    def test_every_line_of_a_brokers_log_is_documented(self, run: Any, tmp_path: Path) -> None:
        sample = unpack_sample(tmp_path)
        logs = (log for log in sample.iterdir() if log.is_dir() and not log.name.startswith("__cluster"))
        code, rows, err = run("--files", *logs, "--print-data-log")
        assert code == 0, err
        types = {row["type"] for row in rows}
        assert {"file", "batch", "record", "offsetIndexEntry", "timeIndexEntry", "abortedTransaction", "producer"} <= types
        documented = documented_fields()
        for row in rows:
            assert set(row) - {"type", "file"} <= documented[row["type"]], row
        assert {row["file"] for row in rows if row["type"] == "producer"} <= {str(path) for path in sample.rglob("*.snapshot")}

    def test_findings_are_lines_and_errors_are_not(self, run: Any, tmp_path: Path) -> None:
        made = write_segment(tmp_path / "one-0")
        index = made.path.with_suffix(".index")
        content = index.read_bytes()
        index.write_bytes(content[:8] + b"\x00\x00\x00\x31" + content[12:])
        code, rows, err = run("--files", made.path, index, "--deep-iteration")
        assert code == 1
        assert [row for row in rows if row["type"] == "mismatch"] == [
            {"type": "mismatch", "file": str(index), "indexOffset": 49, "logOffset": 54}
        ]
        assert {"type": "gap", "file": str(made.path), "offset": 0, "nextOffset": 2} in rows
        assert err.startswith(f"error: {index} at byte 8: ")
        assert len(err.splitlines()) == 1

    def test_lookups_and_invalid_bytes_are_lines(self, run: Any, tmp_path: Path) -> None:
        made = write_partition(tmp_path / "orders-0")
        last = made[-1].path
        _, rows, _ = run("--files", tmp_path / "orders-0", "--offsets", "260")
        looked = {"first": 260, "last": 260, "position": rows[1]["position"]}
        assert rows[1] == {"type": "lookup", "file": str(made[1].path), **looked}
        _, rows, _ = run("--files", tmp_path / "orders-0", "--timestamp", T0 + 10**7)
        assert rows[1:] == [{"type": "lookup", "file": str(last), "since": T0 + 10**7, "offset": None}]
        _, rows, _ = run("--files", tmp_path / "orders-0", "--timestamp", T0 + 2501)
        found = {"since": T0 + 2501, "offset": 252, "timestamp": T0 + 2520, "position": rows[1]["position"]}
        assert rows[1] == {"type": "lookup", "file": str(made[1].path), **found}
        last.write_bytes(last.read_bytes()[:-4])
        _, rows, _ = run("--files", last)
        cut = made[-1].positions[-1]
        size = last.stat().st_size - cut
        assert rows[-1] == {"type": "invalidBytes", "file": str(last), "position": cut, "size": size}

    def test_the_sanity_check_has_a_line_for_each_index(self, run: Any, tmp_path: Path) -> None:
        made = write_segment(tmp_path / "one-0")
        index = made.path.with_suffix(".index")
        assert run("--files", index, "--index-sanity-check")[1][1:] == [
            {"type": "sanityCheck", "file": str(index), "passed": True}
        ]
        index.write_bytes(b"")
        assert run("--files", index)[1][1:] == [{"type": "empty", "file": str(index)}]

    def test_names_that_are_no_utf8_can_be_told_apart(self) -> None:
        names = [Row("empty", {}).json(name) for name in ("/log\udcff", "/log\udcfe")]
        assert len(set(names)) == 2


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


def test_an_unreadable_batch_leaves_complete_lines(tmp_path: Path) -> None:
    made = write_segment(tmp_path / "one-0")
    content = bytearray(made.path.read_bytes())
    content[made.positions[5] + 8 : made.positions[5] + 12] = b"\x7f\xff\xff\xff"
    content[made.positions[6] :] = b""
    made.path.write_bytes(bytes(content))
    dump = JsonSegmentDump("/f", FILES, str(made.path), SegmentView(deep=True), lambda *_: None)
    text, _ = dumped(dump)
    assert [row["position"] for row in objects(text) if row["type"] == "batch"] == list(made.positions[:5])
    assert dump.position == made.positions[5]


def test_errors_name_the_position(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(Batch((Record(0, T0, b"k", b"v"),)).encode() + bytes(40) + b"x")
    dump = JsonSegmentDump("/f", FILES, str(path), SegmentView(), lambda *_: None)
    with pytest.raises(CorruptLogError, match="impossible size"):
        list(dump)
