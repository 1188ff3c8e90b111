"""``count --bytes``: every byte of the ``.log`` files is counted once; figures equal those of plain Python, record by record
without the kernels. And groups of keys: what is a group, and which keys are in none."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compaction.commands import count as count_command
from compaction.counting import count_logs, key_totals
from compaction.counting.key_totals import KeyGroups
from compaction.errors import UsageError
from tests.counting.test_count_keys import NOW_MS, log_of
from tests.dumping.segments import T0
from tests.kafka.encode import Batch, Record
from tests.oracle import compression
from tests.oracle.disk import read_partition
from tests.oracle.random_logs import START_MS
from tests.oracle.records import NaiveBatch, NaiveRecord, decode
from tests.source.random_partition import FLAVOURS, write_random

NOW = "2026-11-26T00:00Z"
#: the start of a window in a key
WINDOW = struct.pack(">q", 1_700_000_000_000)
FORMATS = Path(__file__).parents[1] / "golden" / "formats"
#: the figures of a log; others are of its topic alone
PARTS = ("components", "states", "values")
Cells = dict[Any, list[int]]


def new_cells() -> Cells:
    return defaultdict(lambda: [0, 0, 0])


def expected_usage(log: Path, now_ms: int, last_stable_offset: int, log_start: int = 0) -> dict[str, Any]:
    """The figures of a partition directory, in the form of ``found_usage``."""
    components: Counter[str] = Counter()
    states, values, producers, groups, headers = (new_cells() for _ in range(5))
    newest: dict[bytes, int] = {}
    found: list[tuple[NaiveBatch, NaiveRecord, str, int]] = []
    aborted = [txn for segment in read_partition(log) for txn in segment.aborted_txns]
    for file in sorted(log.glob("*.log")):
        content, end = file.read_bytes(), 0
        for batch in decode(content):
            if not batch.raw.strip(b"\0") or batch.magic > 2:
                break
            end = batch.position + len(batch.raw)
            if batch.control:
                components["control_batches"] += len(batch.raw) if batch.count else 0
                components["batch_overhead"] += 0 if batch.count else len(batch.raw)
            else:
                components.update(_components(batch))
            records = batch.records()
            if not records:
                states["empty_batches", None][2] += len(batch.raw)
            for record, stored in zip(records, _stored(batch, records), strict=True):
                is_aborted = any(
                    batch.transactional and (txn.producer_id == batch.producer_id)
                    and txn.first_offset <= batch.last_offset <= txn.last_offset for txn in aborted
                )  # fmt: skip
                state = _state(batch, record, is_aborted, last_stable_offset, log_start)
                if state == "keyed":
                    assert record.key is not None
                    newest[record.key] = record.offset
                found.append((batch, record, state, stored))
            if not batch.control:
                _add_headers(headers, batch, records)
        components["after_last_batch"] += len(content) - end
    for batch, record, state, stored in found:
        if state == "keyed":
            assert record.key is not None
            latest = newest[record.key] == record.offset
            state = "superseded" if not latest else "tombstone" if record.value is None else "live"
        size = len(record.key or b"") + len(record.value or b"")
        cells = [states[state, _age(record.timestamp, now_ms)]]
        if not batch.control:
            cells += [values[_class(record.value)], producers[batch.producer_id]]
            if record.key is not None:
                cells.append(groups[record.key[:2]])
        for cell in cells:
            for number, amount in enumerate((1, size, stored)):
                cell[number] += amount
    if components["after_last_batch"]:
        states["after_last_batch", None][2] = components["after_last_batch"]
    return {
        "components": {name: amount for name, amount in components.items() if amount},
        "states": dict(states), "values": dict(values), "producers": dict(producers), "headers": dict(headers),
        "groups": dict(groups),
    }  # fmt: skip


def found_usage(usage: dict[str, Any]) -> dict[str, Any]:
    """The same of a log's topic, from the JSON of the command."""

    def cell(row: dict[str, Any]) -> list[int]:
        return [row["records"], row["bytes"], row["stored_bytes"]]

    return {
        "components": {name: amount for name, amount in usage["components"].items() if amount},
        "states": {(row["state"], row["age"]): cell(row) for row in usage["states"]},
        "values": {row["value"]: cell(row) for row in usage["value_sizes"]},
        "producers": {row["producer_id"]: cell(row) for row in usage["producers"]["largest"]},
        "headers": {row["header"]["text"].encode(): cell(row) for row in usage["headers"]["largest"]},
        "groups": {row["group"]["text"].encode(): cell(row) for row in usage["groups"]["largest"]},
    }


def _plain_sizes(batch: NaiveBatch, records: list[NaiveRecord]) -> list[int]:
    if batch.magic < 2:
        return [26 + 8 * batch.magic + len(record.key or b"") + len(record.value or b"") for record in records]
    body = compression.decompress(batch.codec, batch.raw[61:], magic=2)
    sizes, at = [], 0
    for _ in records:
        length, shift, size = 0, 0, 1
        while body[at + size - 1] & 0x80:
            length |= (body[at + size - 1] & 0x7F) << shift
            shift, size = shift + 7, size + 1
        length |= body[at + size - 1] << shift
        sizes.append(size + (length >> 1))
        at += sizes[-1]
    assert at == len(body)
    return sizes


def _stored(batch: NaiveBatch, records: list[NaiveRecord]) -> list[int]:
    plain = _plain_sizes(batch, records) if records else []
    ends = [0]
    for size in plain:
        ends.append(ends[-1] + size)
    cuts = [end * len(batch.raw) // ends[-1] for end in ends] if plain else [0]
    return [after - before for before, after in zip(cuts, cuts[1:], strict=False)]


def _add_headers(cells: Cells, batch: NaiveBatch, records: list[NaiveRecord]) -> None:
    """Each header's part of its batch, in proportion to its uncompressed bytes; rounded so that all have theirs."""
    plain, end = sum(_plain_sizes(batch, records)) if records else 0, 0
    for name, value in (header for record in records for header in record.headers):
        size = len(name) + len(value or b"")
        stored = (end + size) * len(batch.raw) // plain - end * len(batch.raw) // plain
        end += size
        for number, amount in enumerate((1, size, stored)):
            cells[name][number] += amount


def _components(batch: NaiveBatch) -> Counter[str]:
    records = batch.records()
    parts: Counter[str] = Counter()
    for record in records:
        parts["keys"] += len(record.key or b"")
        parts["values"] += len(record.value or b"")
        parts["headers"] += sum(len(name) + len(value or b"") for name, value in record.headers)
    plain = sum(_plain_sizes(batch, records)) if records else 0
    parts["record_overhead"] = plain - parts["keys"] - parts["values"] - parts["headers"]
    if batch.magic == 2:
        parts["batch_overhead"] = 61
    elif batch.codec:
        parts["batch_overhead"] = len(batch.raw) - struct.unpack_from(">i", batch.raw, 22 + 8 * batch.magic)[0]
    parts["compression"] = len(batch.raw) - parts["batch_overhead"] - plain
    return parts


def _state(batch: NaiveBatch, record: NaiveRecord, aborted: bool, last_stable: int, log_start: int) -> str:
    if batch.control:
        return "control"
    if record.offset < log_start:
        return "below_log_start"
    if aborted:
        return "aborted"
    if record.key is None:
        return "no_key"
    if record.offset >= last_stable:
        return "tombstone" if record.value is None else "live"
    return "keyed"


def _age(timestamp_ms: int, now_ms: int) -> str | None:
    if timestamp_ms < 0:
        return "no timestamp"
    if timestamp_ms > now_ms:
        return "in the future"
    hours = (now_ms - timestamp_ms) / 3_600_000
    limits = {"1 hour": 1, "1 day": 24, "7 days": 168, "30 days": 720, "1 year": 8760}
    return next((f"under {name}" for name, limit in limits.items() if hours < limit), "1 year or more")


def _class(value: bytes | None) -> str:
    if value is None:
        return "no value"
    limits = {"100 B": 100, "1 kB": 1000, "10 kB": 10_000, "100 kB": 100_000, "1 MB": 1_000_000}
    return next((f"under {name}" for name, limit in limits.items() if len(value) < limit), "1 MB or more")


def counted(capsys: pytest.CaptureFixture[str], log_dir: Path, *options: object) -> list[dict[str, Any]]:
    argv = ["--log-dir", log_dir, "--bytes", "--output", "json", "--top", 1000, "--group-by", "prefix:2", *options]
    assert count_command.main([*map(str, argv)]) == 0
    topics: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["topics"]
    return topics


def file_bytes(*logs: Path) -> int:
    return sum(file.stat().st_size for log in logs for file in log.glob("*.log"))


def test_every_byte_of_the_sample_is_counted(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topics = counted(capsys, sample)
    assert len(topics) > 10
    for topic in topics:
        logs = [sample / f"{topic['topic']}-{log['partition']}" for log in topic["partitions"]]
        for path, usage in zip([None, *logs], [topic["usage"], *(log["usage"] for log in topic["partitions"])], strict=True):
            size = file_bytes(*logs) if path is None else file_bytes(path)
            assert sum(usage["components"].values()) == size == usage["file_bytes"]
            assert sum(row["stored_bytes"] for row in usage["states"]) == size


def test_batches_that_kafka_encoded_are_counted(tmp_log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = json.loads((FORMATS / "batches.json").read_text(encoding="utf-8"))
    for number, case in enumerate(cases):
        content = base64.b64decode(case["bytes"])
        batch = next(decode(content))
        # the offset of a wrapper is that of its last message
        base = next((record.offset for record in batch.records()), batch.base_offset)
        log_of(tmp_log_dir, content, f"case-{number}", base)
    (topic,) = counted(capsys, tmp_log_dir, "--as-of", NOW)
    names = {case["name"].rpartition("-")[0] for case in cases}
    assert {name[:2] for name in names} == {"v0", "v1", "v2"}
    for log in topic["partitions"]:
        path = tmp_log_dir / f"case-{log['partition']}"
        (segment,) = path.glob("*.log")
        batches = list(decode(segment.read_bytes()))
        # no case has the end of its transaction
        stable = min((batch.base_offset for batch in batches if batch.transactional), default=batches[-1].next_offset)
        expected = expected_usage(path, NOW_MS, stable)
        found = found_usage(topic["usage"] | log["usage"])
        assert {name: found[name] for name in PARTS} == {name: expected[name] for name in PARTS}
        assert log["usage"]["file_bytes"] == file_bytes(path)


@pytest.mark.parametrize("seed", [11, 12])
@pytest.mark.parametrize("flavour", list(FLAVOURS))
def test_random_logs_are_counted_with_little_memory(
    tmp_log_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flavour: str, seed: int
) -> None:
    path, made = write_random(tmp_log_dir, flavour, seed)
    for name, size in (("_JOIN_BYTES", 256), ("_EMIT_BYTES", 512)):
        monkeypatch.setattr(key_totals, name, size)
    monkeypatch.setattr(count_logs, "PARTITION_BYTES", 1000)
    # some records are an hour old; or some have a later timestamp
    now_ms, as_of = {11: (START_MS + 3_610_000, "23:13:30Z"), 12: (START_MS + 10_000, "22:13:30Z")}[seed]
    (topic,) = counted(capsys, tmp_log_dir, "--as-of", f"2023-11-14T{as_of}")
    wanted = expected_usage(path, now_ms, made.last_stable_offset)
    assert found_usage(topic["usage"]) == wanted
    assert sum(wanted["components"].values()) == file_bytes(path) == topic["usage"]["file_bytes"]
    (log,) = topic["partitions"]
    assert log["usage"] == {name: figures for name, figures in topic["usage"].items() if name in log["usage"]}


@pytest.mark.parametrize("tail", [b"\0" * 4096, "torn"], ids=["zeros", "torn"])
def test_bytes_after_the_last_batch_have_their_own_row(
    tmp_log_dir: Path, capsys: pytest.CaptureFixture[str], tail: bytes | str
) -> None:
    batch = Batch((Record(0, T0, b"k", b"v"), Record(1, T0, None, b"keyless"))).encode()
    after = Batch((Record(2, T0, b"k", b"v" * 500),)).encode()[:300] if isinstance(tail, str) else tail
    log_of(tmp_log_dir, batch + after)
    (topic,) = counted(capsys, tmp_log_dir, "--as-of", NOW)
    assert topic["usage"]["components"]["after_last_batch"] == len(after)
    assert topic["usage"]["file_bytes"] == len(batch) + len(after)
    assert topic["usage"]["states"][-1] == {
        "state": "after_last_batch", "age": None, "records": 0, "bytes": 0, "stored_bytes": len(after)
    }  # fmt: skip


def test_records_below_the_log_start_and_batches_without_records_are_stored(
    tmp_log_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [Record(i, T0, b"k%d" % (i % 2), b"v" * i) for i in range(6)]
    empty = Batch((), base_offset=6, last_offset=8, producer_id=7, producer_epoch=0, codec="none").encode()
    log = log_of(tmp_log_dir, Batch(tuple(records), codec="zstd").encode() + empty)
    (tmp_log_dir / "log-start-offset-checkpoint").write_text("0\n1\norders 0 2\n")
    (topic,) = counted(capsys, tmp_log_dir, "--as-of", NOW)
    assert found_usage(topic["usage"]) == expected_usage(log, NOW_MS, 9, log_start=2)
    states = {row["state"]: row["records"] for row in topic["usage"]["states"]}
    assert states == {"live": 2, "superseded": 2, "below_log_start": 2, "empty_batches": 0}


def test_the_start_of_a_window_is_a_time(tmp_log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # before 0, the key is in no group
    starts = [start.to_bytes(8, "big", signed=True) for start in (1_700_000_000_000, 2**56 - 1, -1, -(2**63))]
    records = [Record(i, T0, b"user" + start, b"v") for i, start in enumerate(starts)]
    log_of(tmp_log_dir, Batch(tuple(records)).encode())
    (topic,) = counted(capsys, tmp_log_dir, "--group-by", "window", "--as-of", NOW)
    windows = sorted(row["window_start"] for row in topic["usage"]["groups"]["largest"])
    assert windows == ["2023-11-14T22:13:20.000Z", "2285384-04-02T23:52:07.935Z"]
    assert count_command.main(["--log-dir", str(tmp_log_dir), "--bytes", "--group-by", "window"]) == 0
    assert "\n2023-11-14T22:13:20.000Z " in capsys.readouterr().out


@pytest.mark.parametrize(("groups", "after"), [("window", b""), ("window-store", b"\0\0\0\7")])
def test_the_largest_keys_of_streams_are_shown_with_their_window(
    tmp_log_dir: Path, capsys: pytest.CaptureFixture[str], groups: str, after: bytes
) -> None:
    keys = [b"user" + WINDOW + after, b"short"]
    records = [Record(i, T0, key, b"v" * (9 - i)) for i, key in enumerate(keys)]
    log_of(tmp_log_dir, Batch(tuple(records)).encode())
    (topic,) = counted(capsys, tmp_log_dir, "--group-by", groups, "--as-of", NOW)
    assert [row.get("window_start") for row in topic["largest_keys"]] == ["2023-11-14T22:13:20.000Z", None]
    assert count_command.main(["--log-dir", str(tmp_log_dir), "--bytes", "--group-by", groups, "--top", "2"]) == 0
    largest = [line.partition("records  ")[2] for line in capsys.readouterr().out.splitlines()[-3:-1]]
    assert largest == ["user @ 2023-11-14T22:13:20.000Z", "short"]


@pytest.mark.parametrize(
    ("argument", "key", "group"),
    [
        ("prefix:3", b"abcdef", b"abc"),
        ("prefix:3", b"ab", b"ab"),
        ("prefix:3", None, None),
        (r"regex:^(\w+)-", b"orders-17\xff", None),
        (r"bytes:^(\w+)-", b"orders-17\xff", b"orders"),
        ("regex:^(.)", "Ärger".encode(), "Ä".encode()),
        ("bytes:^(.)", "Ärger".encode(), b"\xc3"),
        ("regex:(?i)^(ä)", "Ärger".encode(), "Ä".encode()),
        (r"regex:^([\pL]+)-", "Größe-1".encode(), "Größe".encode()),
        (r"bytes:^(\xc3.)", "Ärger".encode(), "Ä".encode()),
        (r"regex:^(\w+)-", b"orders", None),
        (r"regex:[0-9]+", b"a12b345", b"12"),
        (r"regex:(a)|b", b"xxb", b""),
        (r"regex:-(\d+)$", b"a\nb-5", b"5"),
        ("regex:^(?:a|b)c", b"bcd", b"bc"),
        ("window", b"user" + WINDOW, WINDOW),
        ("window", b"short", None),
        ("window", b"user" + bytes(8), bytes(8)),
        ("window", b"user" + struct.pack(">q", -1), None),
        ("window", b"user" + struct.pack(">q", -(2**63)), None),
        ("window", b"customer-17", None),
        ("window-store", b"user" + struct.pack(">q", -1) + b"\0\0\0\7", None),
        ("window-store", b"customer-17 of", None),
        ("window-store", b"user" + WINDOW + b"\0\0\0\7", WINDOW),
        ("window-store", WINDOW, None),
    ],
)
def test_the_group_of_a_key(argument: str, key: bytes | None, group: bytes | None) -> None:
    keys = pa.array([b"other", key, key], pa.binary()).slice(1)
    groups = KeyGroups.parse(argument)
    assert groups.of(keys).to_pylist() == [group, group]
    if groups.windowed and key is not None:
        assert (groups.windowed_key(key) or (None, None))[1] == group


def test_keys_that_are_not_text_do_not_hide_others() -> None:
    keys = pa.array([b"\xff-1", "ä-1".encode(), None, b"\xc3"], pa.binary())
    assert KeyGroups.parse("regex:^(.)-").of(keys).to_pylist() == [None, "ä".encode(), None, None]


@pytest.mark.parametrize(("expression", "reason"), [("bytes:ä", "is not ASCII"), ("regex:(", "missing )"), ("bytes:a)(b", "")])
def test_a_wrong_expression_is_refused(expression: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"--group-by: the expression .*{re.escape(reason)}.*; give prefix:NUMBER, regex:"):
        KeyGroups.parse(expression)


def test_an_expression_is_not_shown() -> None:
    assert "secret" not in repr(KeyGroups.parse("regex:secret"))
