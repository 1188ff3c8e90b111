"""Logs that no scenario can express: those of Kafka's bugs, each under its number; those of directories without a clean
shutdown, which are cleaned to the bytes of Kafka's own cleaner (``tests/golden/unclean``); and those that fail and are not
changed, with a record over ``max.decompressed.message.bytes``, with batches that share offsets, or with bytes that change
between the passes under a checksum that remains."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compaction.config.entries import MAX_RECORD
from compaction.config.request import ComparisonRequest
from compaction.config.sources import Policy
from compaction.engine import Job
from compaction.formats.producer_snapshot import write_snapshot
from compaction.names import CLEAN_SHUTDOWN, LEADER_EPOCHS
from compaction.policies.compare_policies import compare_with
from compaction.policies.comparison import OutcomeStatus
from compaction.report import LogReport, LogStatus
from compaction.run.compact import clean_logs
from compaction.run.sizing import Sizes
from compaction.source.read_plan import ReadRequest, plan_read
from tests.kafka.encode import Batch, Legacy, Record
from tests.local_job import clean_locally, read_offsets, request_for
from tests.local_passes import LocalPasses
from tests.log.logs import data_batch, marker
from tests.oracle.disk import read_partition, write_partition
from tests.oracle.segments import write_segment
from tests.scenarios.language import Scenario, parse, scenarios
from tests.scenarios.runner import files

NOW_MS = 1_800_000_000_000
TOPICS = {"t": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}
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
    request = request_for(tmp_path, COMPRESSED.rounds[0].now_ms, TOPICS, dry_run=True)
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

    (report,) = clean_logs(Changed, request_for(tmp_path, NOW_MS, TOPICS, include_active=True)).logs
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


#: logs of directories without a clean shutdown, and what Kafka's own cleaner leaves of them
GOLDEN = Path(__file__).parents[1] / "golden" / "unclean"


def kept(directory: Path) -> dict[str, bytes]:
    """The files of a log, without those that a broker removes later."""
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.suffix != ".deleted"}


def unclean(case: str, log_dir: Path) -> Path:
    shutil.copytree(GOLDEN / case / "t-0", log_dir / "t-0")
    return log_dir


def expected_by_kafka(case: str) -> dict[str, bytes]:
    return kept(GOLDEN / case / "expected-by-kafka" / "t-0")


def outcome(log_dir: Path, copy: Path | None = None) -> tuple[LogReport, Path]:
    """What is reported, and the log: in place or a copy."""
    if copy is None:
        return clean_locally(log_dir, NOW_MS, TOPICS)["t"], log_dir / "t-0"
    request = replace(request_for(log_dir, NOW_MS, TOPICS), output_dir=str(copy))
    return clean_logs(LocalPasses, request).logs[0], copy / "t-0"


@pytest.mark.parametrize(("case", "in_place"), [("empty-txnindex", True), ("garbage-tail", True), ("garbage-tail", False)])
def test_the_bytes_are_those_of_kafkas_cleaner(case: str, in_place: bool, tmp_path: Path) -> None:
    """A run in place leaves garbage to the broker that starts there, a copy has none."""
    report, log = outcome(unclean(case, tmp_path / "logs"), None if in_place else tmp_path / "copy")
    assert report.status is LogStatus.CLEANED
    active, expected = f"{24:020d}.log", expected_by_kafka(case)
    if case == "garbage-tail" and in_place:
        expected[active] = (GOLDEN / case / "t-0" / active).read_bytes()
    assert kept(log) == expected


@pytest.mark.parametrize("in_place", [True, False])
def test_a_run_leaves_the_leader_epochs_that_a_killed_broker_had_not_stored(tmp_path: Path, in_place: bool) -> None:
    """Cleaning may remove the batches from which a broker would assign them."""
    log_dir = unclean("garbage-tail", tmp_path / "logs")
    (log_dir / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    report, log = outcome(log_dir, None if in_place else tmp_path / "copy")
    assert report.status is LogStatus.CLEANED
    assert (log / LEADER_EPOCHS).read_text() == "0\n1\n0 0\n"
    assert (log_dir / "t-0" / LEADER_EPOCHS).exists() is in_place


def test_after_a_clean_shutdown_garbage_is_damage(tmp_path: Path) -> None:
    (unclean("garbage-tail", tmp_path) / CLEAN_SHUTDOWN).touch()
    assert outcome(tmp_path)[0].status is LogStatus.FAILED


def expired_producers(log_dir: Path) -> None:
    """Snapshots without the producers of the log, which have expired, and no transaction indexes."""
    for index in log_dir.glob("t-0/*.txnindex"):
        index.unlink()
    for offset in (4, 5):
        (log_dir / "t-0" / f"{offset:020d}.snapshot").write_bytes(write_snapshot([]))


@pytest.mark.parametrize("shutdown", [[CLEAN_SHUTDOWN], []], ids=["clean", "unclean"])
def test_pass_1_finds_aborts_where_the_snapshots_have_none(shutdown: list[str], tmp_path: Path) -> None:
    unclean("empty-txnindex", tmp_path)
    expired_producers(tmp_path)
    for name in shutdown:
        (tmp_path / name).touch()
    assert outcome(tmp_path)[0].status is LogStatus.CLEANED
    expected = expected_by_kafka("empty-txnindex")
    del expected[f"{4:020d}.txnindex"]
    assert {name: data for name, data in kept(tmp_path / "t-0").items() if not name.endswith(".snapshot")} == expected


def test_the_marker_of_aborted_data_is_found_in_the_active_segment(tmp_path: Path) -> None:
    """Its transaction index is lost, and the snapshots, of an idle log, lack its producer."""
    batches = Batch([Record(0, NOW_MS - 9, b"a", b"kept")]).encode(), aborted_batch(1, b"a")
    path = tmp_path / "t-0"
    path.mkdir()
    (path / f"{0:020d}.log").write_bytes(b"".join(batches))
    (path / f"{2:020d}.log").write_bytes(marker(2, 7, commit=False) + data_batch(3))
    for offset in (2, 4):
        (path / f"{offset:020d}.snapshot").write_bytes(write_snapshot([]))
    (tmp_path / CLEAN_SHUTDOWN).touch()
    assert outcome(tmp_path)[0].status is LogStatus.CLEANED
    assert (path / f"{0:020d}.log").read_bytes() == batches[0]
    assert (path / f"{2:020d}.txnindex").exists()


def test_a_transaction_that_the_snapshots_do_not_have_is_none_as_for_a_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``tests/conformance/test_scenarios.py`` has such a log of Kafka's. Without snapshots it is open."""
    path = tmp_path / "t-0"
    path.mkdir()
    (path / f"{0:020d}.log").write_bytes(data_batch(0) + aborted_batch(1, b"key-0"))
    (path / f"{2:020d}.log").write_bytes(data_batch(2))
    shutil.copytree(tmp_path, tmp_path.with_name("replayed"))
    for offset in (2, 3):
        (path / f"{offset:020d}.snapshot").write_bytes(write_snapshot([]))
    report, _ = outcome(tmp_path)
    assert (report.status, report.end_offset, report.superseded_records) == (LogStatus.CLEANED, 2, 1)
    assert f"{path}: the transaction from offset 1 on has no marker, and the producer snapshots do not have it" in caplog.text
    assert outcome(tmp_path.with_name("replayed"))[0].reason_code == "held"


def aborted_batch(offset: int, key: bytes) -> bytes:
    records = [Record(offset, NOW_MS - 9, key, b"aborted")]
    return Batch(records, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True).encode()


@pytest.mark.parametrize("expired", [False, True], ids=["no snapshots", "snapshots without the producer"])
def test_aborted_records_are_not_read_as_committed(expired: bool, tmp_path: Path) -> None:
    unclean("empty-txnindex", tmp_path)
    if expired:
        expired_producers(tmp_path)
    options = {"path": str(tmp_path)}
    (task,) = plan_read(ReadRequest.parse({**options, "isolation.level": "read_committed"}), 0)
    assert task.spec.aborted is not None
    assert [column.tolist() for column in vars(task.spec.aborted).values()] == [[2], [2], [3]]
    (latest,) = plan_read(ReadRequest.parse({**options, "view": "latest"}), 0)
    assert latest.spec.aborted is not None and len(latest.spec.aborted) == 1


def test_garbage_after_the_last_batch_is_not_read(tmp_path: Path) -> None:
    unclean("garbage-tail", tmp_path)
    (task,) = plan_read(ReadRequest.parse({"path": str(tmp_path)}), 0)
    assert sum(part.end - part.start for part in task.slices) == 376 + 388 + 388
