"""Logs that no scenario can express: those of Kafka's bugs, each under its number, and those that fail and are not changed,
with a record over ``max.decompressed.message.bytes``, with batches that share offsets, or with bytes that change between the
passes under a checksum that remains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from compaction.config.entries import MAX_RECORD
from compaction.config.request import ComparisonRequest
from compaction.config.sources import Policy
from compaction.engine import Job
from compaction.policies.compare_policies import compare_with
from compaction.policies.comparison import OutcomeStatus
from compaction.report import LogReport, LogStatus
from compaction.run.compact import clean_logs
from compaction.run.sizing import Sizes
from tests.kafka.encode import Batch, Legacy, Record
from tests.local_job import clean_locally, read_offsets, request_for
from tests.local_passes import LocalPasses
from tests.oracle.disk import read_partition, write_partition
from tests.oracle.segments import write_segment
from tests.scenarios.language import Scenario, parse, scenarios
from tests.scenarios.runner import files

FOUND = scenarios("record_limit")
OVER = {name: one for name, one in FOUND.items() if one.answers == [["refused"]]}
COMPRESSED = FOUND["compressed-at-the-limit"]
SIZE = int(COMPRESSED.config[MAX_RECORD])


def cleaned(root: Path, scenario: Scenario, *, limit: int | None = None, **options: Any) -> LogReport:
    """The report of the log ``t``, which is written unless it is there."""
    if not (root / "t-0").exists():
        (root / "t-0").mkdir()
        files(root / "t-0", scenario, 0)
    topics = {"t": {**scenario.topic_config, **({} if limit is None else {MAX_RECORD: str(limit)})}}
    return clean_locally(root, scenario.rounds[0].now_ms, topics, **options)["t"]


def contents(root: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted((root / "t-0").glob("*.log"))]


@pytest.mark.parametrize("name", OVER)
def test_the_reason_has_the_size_of_the_record_and_the_log_is_not_changed(tmp_path: Path, name: str) -> None:
    limit = int(OVER[name].config[MAX_RECORD])
    report = cleaned(tmp_path, OVER[name])
    size = limit + 1
    what = rf"0\.log at byte 0: compressed batch has a record of {size} bytes, {MAX_RECORD} is {limit};.* to {size} "
    assert report.status is LogStatus.FAILED
    assert re.search(what, report.reason), report.reason
    assert contents(tmp_path) == [b"".join(segment) for segment in OVER[name].rounds[0].segments]


@pytest.mark.parametrize(
    ("version", "limit", "status"),
    [("4.3.1", 1, LogStatus.CLEANED), ("4.2.2", SIZE - 1, LogStatus.FAILED), ("4.2.2", SIZE, LogStatus.CLEANED)],
)
def test_versions_without_the_setting_take_any_record(tmp_path: Path, version: str, limit: int, status: LogStatus) -> None:
    assert cleaned(tmp_path, COMPRESSED, kafka_version=version, limit=limit).status is status


def test_topics_without_a_limit_take_any_record(tmp_path: Path) -> None:
    unlimited = Scenario(COMPRESSED.rounds, {"index.interval.bytes": "4096"})
    assert cleaned(tmp_path, unlimited).status is LogStatus.CLEANED


def test_a_comparison_and_a_dry_run_fail_the_log_under_that_policy_only(tmp_path: Path) -> None:
    report = cleaned(tmp_path, COMPRESSED, dry_run=True, limit=SIZE - 1)
    assert report.status is LogStatus.FAILED
    assert MAX_RECORD in report.reason
    policies = tuple(Policy.read(f"{MAX_RECORD}={limit}") for limit in (SIZE - 1, SIZE))
    topics = {"t": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}
    request = request_for(tmp_path, COMPRESSED.rounds[0].now_ms, topics, dry_run=True)
    (log,) = compare_with(LocalPasses, ComparisonRequest(request, policies)).logs
    assert [outcome.status for outcome in log.outcomes] == [OutcomeStatus.FAILED, OutcomeStatus.CLEANED]


def old_log(gap: int, *, export: bool = False) -> Scenario:
    """Batches of three records that say that the first of them is the last one, as an old client of Go wrote them
    (``tests/scenarios/cleaning.txt``); each begins ``gap`` offsets after the one before."""
    lines, offset = [], 0
    for segment in ("abc bcd xay", "aBc bCd xAy", "abC bcD xaY"):
        lines.append("segment")
        for keys in segment.split():
            lines += [f"writer offset={offset}", f"batch {keys} last={offset}"]
            offset += gap
        # otherwise its last records would be past the base of the next segment
        lines += [f"writer offset={offset}", "batch z"]
        offset += 1
    return parse([*lines[: -2 if export else None], *([] if export else ["segment", "batch e"]), "clean"])


def test_the_last_batch_of_an_export_is_cleaned(tmp_path: Path) -> None:
    report = cleaned(tmp_path, old_log(3, export=True), include_active=True)
    assert (report.status, report.records_after) == (LogStatus.CLEANED, 7), report.reason


@pytest.mark.parametrize("gap", [1, 2])
@pytest.mark.parametrize("sizes", [None, Sizes(200, 200, 2)], ids=["one task", "many tasks"])
def test_batches_that_share_offsets_are_refused(tmp_path: Path, gap: int, sizes: Sizes | None) -> None:
    log = old_log(gap)
    report = cleaned(tmp_path, log, sizes=sizes)
    assert report.status is LogStatus.FAILED
    assert "expected" in report.reason and "or more" in report.reason
    assert contents(tmp_path) == [b"".join(segment) for segment in log.rounds[0].segments]


NOW_MS = 1_800_000_000_000
TOPIC = {"t": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_segment_whose_bytes_changed_since_the_first_pass_fails_its_log(tmp_path: Path, magic: int, codec: str) -> None:
    records = [Record(offset, NOW_MS, b"%d" % (offset % 4), b"value") for offset in range(6)]
    together = 1 if codec == "none" else 2
    chosen = [records[at : at + together] for at in range(0, len(records), together)]
    sets = [Batch(each, codec) if magic == 2 else Legacy(each, magic, codec) for each in chosen]
    write_partition(tmp_path / "t-0", [write_segment(0, [each.encode() for each in sets], 4096, NOW_MS)])
    log = tmp_path / "t-0" / f"{0:020d}.log"
    whole = log.read_bytes()

    class Changed(LocalPasses):
        def run(self, job: Job, *args: Any) -> Any:
            if job.name == "pass 2":
                # the last byte of a value, or of the checksum in a payload of gzip
                data = bytearray(log.read_bytes())
                data[-1] ^= 1
                log.write_bytes(data)
            return super().run(job, *args)

    (report,) = clean_logs(Changed, request_for(tmp_path, NOW_MS, TOPIC, include_active=True)).logs
    assert report.status is LogStatus.FAILED
    assert "fails its CRC" in report.reason
    assert log.read_bytes() == whole[:-1] + bytes([whole[-1] ^ 1])
    assert not [path for path in log.parent.iterdir() if path.suffix not in (".log", ".index", ".timeindex")]


def log_of(segment: str) -> Scenario:
    """A log of this segment, and an active one."""
    settings = "set delete.retention.ms 0", "set index.interval.bytes 1"
    return parse([*settings, f"segment {segment}", "segment batch z", "clean"])


@pytest.mark.parametrize("content", ["", "0\n0\n"])
def test_kafka_6499_an_empty_cleaner_checkpoint_holds_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "cleaner-offset-checkpoint").write_text(content, encoding="utf-8")
    report = cleaned(tmp_path, log_of("batch aa"))
    assert (report.status, report.first_dirty_offset) == (LogStatus.CLEANED, 0)
    assert read_offsets(tmp_path, "cleaner_offsets") == {"t": 2}


def test_kafka_6264_a_segment_whose_offsets_overflow_it_is_split_and_cleaned(tmp_path: Path) -> None:
    far = 2**31 + 5
    report = cleaned(tmp_path, log_of(f"batch ab | gap {far - 2} | batch a"))
    assert report.status is LogStatus.CLEANED, report.reason
    left = read_partition(tmp_path / "t-0")
    assert [segment.base_offset for segment in left] == [0, far, far + 1]
    records = [(r.offset, r.key) for segment in left[:-1] for batch in segment.batches for r in batch.records()]
    assert records == [(1, b"b"), (far, b"a")]
