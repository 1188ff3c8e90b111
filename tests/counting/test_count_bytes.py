"""``count --bytes``: every byte of the ``.log`` files is counted once; figures equal those of plain Python, record by record
without the kernels. What is a group of keys, and which keys are in none. The page, opened from disk in a real browser."""

from __future__ import annotations

import json
import re
import struct
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import compaction
from compaction.commands import count as count_command
from compaction.counting import count_logs, key_totals
from compaction.counting.count_logs import LogCount
from compaction.counting.count_report import MOST_TOPICS, CountReport
from compaction.counting.key_totals import KeyGroups
from compaction.errors import UsageError
from compaction.names import LogLocation, TopicPartition
from tests.counting.test_count_keys import NOW_MS, log_of
from tests.dumping.segments import T0
from tests.golden import unpack_sample
from tests.kafka.encode import Batch, Record
from tests.oracle import compression
from tests.oracle.disk import read_partition
from tests.oracle.random_logs import START_MS
from tests.oracle.records import NaiveBatch, NaiveRecord, Reader, decode
from tests.policies.browser import DARK, Browser
from tests.source.plain_consumer import FLAVOURS, write_random

NOW = "2026-11-26T00:00Z"
#: the start of a window in a key
WINDOW = struct.pack(">q", 1_700_000_000_000)
Cells = dict[Any, list[int]]
VALUE_CLASSES = {"100 B": 100, "1 kB": 1000, "10 kB": 10_000, "100 kB": 100_000, "1 MB": 1_000_000}
HOURS = {"1 hour": 1, "1 day": 24, "7 days": 168, "30 days": 720, "1 year": 8760}


def new_cells() -> Cells:
    return defaultdict(lambda: [0, 0, 0])


def add(cell: list[int], *amounts: int) -> None:
    cell[:] = map(sum, zip(cell, amounts, strict=True))


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
            end, records, sizes = batch.position + len(batch.raw), batch.records(), _plain_sizes(batch)
            if batch.control:
                components["control_batches" if batch.count else "batch_overhead"] += len(batch.raw)
            else:
                components.update(_components(batch, sum(sizes)))
                # each header's part of its batch
                pairs = [pair for record in records for pair in record.headers]
                parts = [len(name) + len(value or b"") for name, value in pairs]
                for (name, _), size, stored in zip(pairs, parts, _shares(batch, parts, sum(sizes)), strict=True):
                    add(headers[name], 1, size, stored)
            if not records:
                states["empty_batches", None][2] += len(batch.raw)
            is_aborted = batch.transactional and any(
                txn.producer_id == batch.producer_id and txn.first_offset <= batch.last_offset <= txn.last_offset
                for txn in aborted
            )
            for record, stored in zip(records, _shares(batch, sizes, sum(sizes)), strict=True):
                state = _state(batch, record, is_aborted, last_stable_offset, log_start)
                if state == "keyed":
                    newest[record.key or b""] = record.offset
                found.append((batch, record, state, stored))
        components["after_last_batch"] += len(content) - end
    for batch, record, state, stored in found:
        if state == "keyed":
            latest = newest[record.key or b""] == record.offset
            state = "superseded" if not latest else "tombstone" if record.value is None else "live"
        cells = [states[state, _age(record.timestamp, now_ms)]]
        if not batch.control:
            value = "no value" if record.value is None else _class(len(record.value), VALUE_CLASSES, "1 MB or more")
            cells += [values[value], producers[batch.producer_id]]
            cells += [] if record.key is None else [groups[record.key[:2]]]
        for cell in cells:
            add(cell, 1, len(record.key or b"") + len(record.value or b""), stored)
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


def _plain_sizes(batch: NaiveBatch) -> list[int]:
    """The bytes of each record, not compressed."""
    records = batch.records()
    if batch.magic < 2 or not records:
        return [26 + 8 * batch.magic + len(record.key or b"") + len(record.value or b"") for record in records]
    body, ends = Reader(compression.decompress(batch.codec, batch.raw[61:], magic=2)), [0]
    for _ in records:
        body.take(body.varint())
        ends.append(body.at)
    assert body.at == len(body.data)
    return [after - before for before, after in pairwise(ends)]


def _shares(batch: NaiveBatch, parts: list[int], plain: int) -> list[int]:
    """The stored bytes of parts of a batch, in proportion to their size; rounded so that all together have its bytes."""
    ends = [end * len(batch.raw) // (plain or 1) for end in accumulate(parts, initial=0)]
    return [after - before for before, after in pairwise(ends)]


def _components(batch: NaiveBatch, plain: int) -> Counter[str]:
    parts: Counter[str] = Counter()
    for record in batch.records():
        parts["keys"] += len(record.key or b"")
        parts["values"] += len(record.value or b"")
        parts["headers"] += sum(len(name) + len(value or b"") for name, value in record.headers)
    parts["record_overhead"] = plain - parts.total()
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
    return "in the future" if timestamp_ms > now_ms else _class((now_ms - timestamp_ms) / 3_600_000, HOURS, "1 year or more")


def _class(amount: float, limits: dict[str, int], largest: str) -> str:
    return next((f"under {name}" for name, limit in limits.items() if amount < limit), largest)


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


NOW = "2026-11-26T00:00Z"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> CountReport:
    sample = unpack_sample(tmp_path_factory.mktemp("sample"))
    return compaction.count(sample, stored=True, group_by=r"regex:^(\w+)-", top=5, as_of=NOW, engine="local")


@pytest.fixture(scope="module")
def page(report: CountReport) -> str:
    return report.to_html()


def test_it_has_the_figures_of_the_result(report: CountReport) -> None:
    shown, topics = report.page_document(), report.to_dict()["topics"]
    total, by_name = shown["total"], {topic["topic"]: topic for topic in shown["topics"]}
    assert by_name.keys() == {topic["topic"] for topic in topics}
    for field in ("records", "keys", "tombstones", "keyless", "bytes"):
        assert total[field] == sum(topic[field] for topic in topics)
    file_bytes = total["usage"]["file_bytes"]
    assert file_bytes == sum(topic["usage"]["file_bytes"] for topic in topics)
    assert file_bytes == sum(row["stored_bytes"] for row in total["usage"]["states"])
    assert file_bytes == sum(total["usage"]["components"].values())
    for topic in topics:
        assert_has(by_name[topic["topic"]], topic)


def assert_has(shown: Any, reported: Any) -> None:
    """The page has the objects of the report, and names beside them."""
    if isinstance(reported, dict):
        assert shown.keys() - {"name"} == reported.keys()
        for field in reported:
            assert_has(shown[field], reported[field])
    elif isinstance(reported, list):
        for each, other in zip(shown, reported, strict=True):
            assert_has(each, other)
    else:
        assert shown == reported


def test_logs_that_cannot_be_read_are_named(report: CountReport) -> None:
    broken = LogCount(LogLocation(TopicPartition("broken", 0), "/kafka", "/kafka/broken-0"), error="</script> is no log")
    plan = report.plan._replace(logs=[*report.plan.logs, broken])
    assert replace(report, plan=plan).page_document()["notes"] == ["broken-0: </script> is no log"]
    assert replace(report, plan=plan).to_html().count("</script>") == 2


def test_a_page_of_very_many_topics_remains_small(report: CountReport) -> None:
    topic = report.plan.topics[0]
    many = [replace(topic, topic=f"topic-{number:04}") for number in range(1000)]
    large = replace(report, plan=report.plan._replace(topics=many))
    assert len(large.page_document()["topics"]) == MOST_TOPICS
    assert large.page_document()["total"]["topics"] == 1000
    assert "The 200 largest topics can be chosen" in large.page_document()["about"]
    assert len(large.to_html()) < 5_000_000


@pytest.mark.browser
@pytest.mark.parametrize(("width", "flags"), [(390, ()), (390, (DARK,)), (1280, ()), (1280, (DARK,))])
def test_it_fits_the_width_and_has_contrast(browser: Browser, page: str, width: int, flags: tuple[str, ...]) -> None:
    script = """
      for (const node of document.querySelectorAll('details')) node.open = true;
      const wide = document.documentElement.scrollWidth - window.innerWidth;
      const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
      const bright = (colour) => (([red, green, blue]) => (299 * red + 587 * green + 114 * blue) / 1000)(parts(colour));
      const ground = bright(getComputedStyle(document.querySelector('.grid > section')).backgroundColor);
      const text = [...document.querySelectorAll('svg text')].map((node) => bright(getComputedStyle(node).fill));
      return [wide, Math.min(...text.map((each) => Math.abs(each - ground)))];
    """
    shown = browser.show(page, script, *flags, size=(width, 900))
    overflow, contrast = shown.told
    assert overflow <= 0
    assert contrast > 90
    assert (shown.addresses, shown.console) == ((), ())


@pytest.mark.browser
def test_a_topic_can_be_chosen_and_its_charts_have_words_and_tables(browser: Browser, page: str) -> None:
    script = """
      const box = document.getElementById('shown');
      box.value = String([...box.options].findIndex((option) => option.text === 'orders'));
      box.dispatchEvent(new Event('change'));
      return [[...document.querySelectorAll('h2')].map((node) => node.textContent),
        [...document.querySelectorAll('svg')].map((node) => node.getAttribute('aria-label')),
        [...document.querySelectorAll('#blocks table')].map((node) => node.rows.length),
        document.querySelector('.big').textContent];
    """
    headings, labels, rows, size = browser.show(page, script).told
    shown = ["States and ages", "Sizes of values", "Codecs", "Groups of keys", "Headers", "Producers", "Largest keys"]
    assert headings == ["Components", *shown, "Logs"]
    assert labels[0].startswith("orders: keys: 54.0 kB, 20.9 %; values: ")
    assert len(labels) == len(shown) + 1 and all("%" in label for label in labels)
    assert rows == [4, 4, 6, 2, 3, 11, 6]
    assert size == "258 kB .log files"


@pytest.mark.browser
@pytest.mark.parametrize(("topics", "others"), [(17, "and 5 more in the table"), (MOST_TOPICS + 8, "and 8 more")])
def test_topics_that_have_no_bar_or_no_row_are_counted(browser: Browser, report: CountReport, topics: int, others: str) -> None:
    """Not only twelve of seventeen."""
    topic = report.plan.topics[0]
    many = report.plan._replace(topics=[replace(topic, topic=f"topic-{number:03}") for number in range(topics)])
    script = "[...document.querySelectorAll('h2')].find((node) => node.textContent === 'Topics').parentElement.innerText"
    shown = browser.show(replace(report, plan=many).to_html(), script).told
    assert re.search(rf"topic-011\s.*{others}", shown, re.DOTALL)
    assert "topic-012" not in shown


@pytest.mark.browser
def test_all_topics_have_groups_headers_producers_and_keys_too(browser: Browser, page: str, report: CountReport) -> None:
    script = """
      const cells = (row) => [...row.cells].map((cell) => cell.textContent);
      return [...document.querySelectorAll('#blocks section')].filter((node) => node.querySelector('table')).map((node) =>
        [node.querySelector('h2').textContent, [...node.querySelectorAll('tbody tr')].map(cells)]);
    """
    tables = dict(browser.show(page, script).told)
    assert {"Topics", "Groups of keys", "Headers", "Producers", "Largest keys"} <= tables.keys()
    orders = next(topic for topic in report.to_dict()["topics"] if topic["topic"] == "orders")["usage"]
    (group,) = orders["groups"]["largest"]
    whole = report.page_document()["total"]["usage"]["file_bytes"]
    figures = [f"{group[field]:,}" for field in ("records", "bytes", "stored_bytes")]
    assert ["orders: orders", *figures, f"{100 * group['stored_bytes'] / whole:.1f} %"] in tables["Groups of keys"]


@pytest.mark.browser
def test_a_count_without_bytes_has_a_page_too(browser: Browser, tmp_path: Path) -> None:
    report = compaction.count(unpack_sample(tmp_path), top=3, engine="local")
    shown = browser.show(report.to_html(), "document.body.innerText")
    assert shown.console == ()
    assert "Records and keys" in shown.told and "of keys and values" in shown.told and "Largest keys" in shown.told
