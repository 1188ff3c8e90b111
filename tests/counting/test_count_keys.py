"""``count``: figures equal those of a plain dictionary of what a consumer is served, on every engine."""

from __future__ import annotations

import base64
import io
import json
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import compaction
from compaction.commands import count as count_command
from compaction.counting import count_logs, key_totals
from compaction.counting.count_logs import GROUPS, HEADER_NAMES, KEYS, PRODUCERS, StoredRequest, plan_count
from compaction.counting.count_report import CountReport
from compaction.counting.key_totals import KeyGroups, Largest
from compaction.engine import Engine
from compaction.engines.local import LocalEngine
from compaction.screen.progress import Progress
from compaction.source.data_source import end_offsets
from compaction.source.read_columns import READ_COMMITTED
from compaction.source.read_plan import ReadRequest
from tests.dumping.segments import T0
from tests.files.test_lock import held_elsewhere
from tests.kafka.encode import Batch, Record
from tests.local_job import logs_in
from tests.local_passes import LocalPasses
from tests.source.plain_consumer import FLAVOURS, Served, read_rows, serve, write_random

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Counted = dict[str, Any]
NOW_MS = 1_795_651_200_000
FIGURES = ("records", "keyless", "tombstones", "bytes", "keys", "deleted_keys")


def expected(records: list[Served], top: int, by: str) -> Counted:
    """The figures of some records, by a dictionary; ``deleted_keys`` only of one partition."""
    keys: dict[bytes, list[int]] = defaultdict(lambda: [0, 0, 0])
    newest: dict[bytes, bytes | None] = {}
    for each in records:
        if each.key is not None:
            found = keys[each.key]
            found[0] += 1
            found[1] += len(each.key) + len(each.value or b"")
            found[2] += each.value is None
            newest[each.key] = each.value
    order = {"records": 0, "bytes": 1}[by]
    largest = sorted(keys, key=lambda key: (-keys[key][order], key))[:top]
    return {
        "records": len(records),
        "keyless": sum(each.key is None for each in records),
        "tombstones": sum(found[2] for found in keys.values()),
        "bytes": sum(len(each.key or b"") + len(each.value or b"") for each in records),
        "keys": len(keys),
        "deleted_keys": sum(value is None for value in newest.values()),
        "largest_keys": [(key, *keys[key]) for key in largest],
    }


def figures(found: Counted) -> Counted:
    """The same from the command's JSON."""
    largest = [(decoded(each["key"]), each["records"], each["bytes"], each["tombstones"]) for each in found["largest_keys"]]
    return {**{name: found[name] for name in FIGURES}, "largest_keys": largest}


def decoded(key: dict[str, str]) -> bytes:
    ((kind, text),) = key.items()
    return text.encode() if kind == "text" else base64.b64decode(text)


def counted(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> Counted:
    assert count_command.main([*map(str, argv), "--output", "json"]) == code
    found: Counted = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(("level", "by"), [("read_uncommitted", "records"), ("read_committed", "bytes")])
def test_the_sample_is_counted_as_a_consumer_is_served(
    sample: Path, capsys: pytest.CaptureFixture[str], level: str, by: str
) -> None:
    found = counted(capsys, "--log-dir", sample, "--isolation-level", level, "--by", by, "--top", 7)
    assert (found["schema_version"], found["isolation_level"]) == (1, level)
    committed = level == "read_committed"
    stable = json.loads(end_offsets(str(sample), topic="payments-open", **{"isolation.level": "read_committed"}))
    ends = {"payments-open": stable["payments-open"]["0"]} if committed else {}
    assert {topic["topic"] for topic in found["topics"]} >= {"orders", "payments", "payments-open", "never-written"}
    for topic in found["topics"]:
        every: list[Served] = []
        for log in topic["partitions"]:
            path = sample / f"{topic['topic']}-{log['partition']}"
            records = list(serve(path, committed=committed, end_offset=ends.get(topic["topic"])))
            assert figures(log) == expected(records, 7, by)
            every += records
        deleted = sum(log["deleted_keys"] for log in topic["partitions"])
        assert figures(topic) == {**expected(every, 7, by), "deleted_keys": deleted}


def test_one_topic_has_one_answer(sample: Path) -> None:
    """``count``, ``count --bytes`` and the view count the same records, aborted transactions and open ones left out."""
    figures_of: dict[str, Mapping[str, Any]] = {}
    for stored in (False, True):
        for log in compaction.count(sample, topics="payments.*", stored=stored, engine="local").rows():
            wanted = figures_of.setdefault(f"{log['topic']}-{log['partition']}", log)
            assert {name: log[name] for name in FIGURES} == {name: wanted[name] for name in FIGURES}
    assert len(figures_of) == 3
    for name, log in figures_of.items():
        view = read_rows(sample, view="latest", partition=name)
        assert (log["keys"], log["deleted_keys"]) == (len(view), sum(row["value"] is None for row in view))
        every = read_rows(sample, partition=name)
        assert len(every) > log["records"] == sum(row["superseded"] + 1 for row in view)


def log_of(log_dir: Path, content: bytes, name: str = "orders-0") -> Path:
    """A log of one segment."""
    log = log_dir / name
    log.mkdir()
    (log / f"{0:020d}.log").write_bytes(content)
    return log


@pytest.mark.parametrize("flavour", list(FLAVOURS))
def test_random_logs_are_counted_with_little_memory(
    tmp_log_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flavour: str
) -> None:
    path, made = write_random(tmp_log_dir, flavour, 11)
    for name, size in (("_JOIN_BYTES", 256), ("_EMIT_BYTES", 512)):
        monkeypatch.setattr(key_totals, name, size)
    monkeypatch.setattr(count_logs, "PARTITION_BYTES", 1000)
    for level, records in (
        ("read_uncommitted", serve(path)),
        ("read_committed", serve(path, committed=True, end_offset=made.last_stable_offset)),
    ):
        found = counted(capsys, "--log-dir", tmp_log_dir, "--isolation-level", level, "--top", 1000)
        assert figures(found["topics"][0]["partitions"][0]) == expected(list(records), 1000, "bytes")


@pytest.mark.parametrize("stored", [None, StoredRequest(NOW_MS, KeyGroups.parse("prefix:3"))], ids=["", "bytes"])
@pytest.mark.parametrize("engine", ["processes", pytest.param("spark", marks=pytest.mark.spark)])
def test_engines_and_divisions_of_the_work_count_the_same(
    sample: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, engine: str, stored: StoredRequest | None
) -> None:
    monkeypatch.setattr("compaction.engine.SHOWN_BYTES", 0)
    logs = logs_in(sample)[1]
    largest = dict.fromkeys((KEYS, GROUPS, HEADER_NAMES, PRODUCERS), Largest(3, "records"))
    found, told = [], io.StringIO()
    with LocalEngine(2, Progress(partial(print, file=told)), inline_bytes=0) as workers:
        other = on_spark(request, Progress(partial(print, file=told))) if engine == "spark" else workers
        for runner, slice_bytes in ((LocalPasses(), 1 << 30), (other, 20_000)):
            monkeypatch.setattr(count_logs, "PARTITION_BYTES", 2 * slice_bytes)
            monkeypatch.setattr(count_logs, "TASK_BYTES", 50_000)
            plan = plan_count(logs, ReadRequest.parse({"path": str(sample), "slicebytes": str(slice_bytes)}), stored)
            assert ({task.partitions for task in plan.tasks} > {1}) is (slice_bytes == 20_000)
            count_logs.count_logs(runner, plan, largest)
            groups = None if stored is None else stored.group_by
            found.append(CountReport(plan, READ_COMMITTED, True, stored is not None, groups, NOW_MS).to_dict())
    assert found[0] == found[1]
    assert sum(topic["keys"] for topic in found[0]["topics"]) > 1000
    assert told.getvalue().startswith("count: ")


def on_spark(request: pytest.FixtureRequest, progress: Progress) -> Engine:
    from compaction.engines.spark import SparkEngine

    spark: SparkSession = request.getfixturevalue("spark")
    return SparkEngine(spark.sparkContext, progress)


def test_the_directory_of_a_live_broker_is_counted_as_a_snapshot(tmp_log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        log_of(tmp_log_dir, Batch([Record(0, T0, b"order-1", b"x")]).encode(), f"orders-{number}")
    (tmp_log_dir / ".lock").touch()
    with held_elsewhere(tmp_log_dir):
        assert count_command.main(["--log-dir", str(tmp_log_dir)]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"in use; figures are a snapshot: {tmp_log_dir}"
        (topic,) = counted(capsys, "--log-dir", tmp_log_dir)["topics"]
    assert [log["in_use"] for log in topic["partitions"]] == [True, True]
    (topic,) = counted(capsys, "--log-dir", tmp_log_dir)["topics"]
    assert [log["in_use"] for log in topic["partitions"]] == [False, False]
