"""Logs of directories without a clean shutdown are cleaned to the bytes of Kafka's own cleaner (``tests/golden/unclean``)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from compaction.formats.producer_snapshot import write_snapshot
from compaction.names import CLEAN_SHUTDOWN, LEADER_EPOCHS
from compaction.report import LogReport, LogStatus
from compaction.run.compact import clean_logs
from compaction.source.read_plan import ReadRequest, plan_read
from tests.kafka.encode import Batch, Record
from tests.local_job import clean_locally, request_for
from tests.local_passes import LocalPasses
from tests.log.logs import data_batch, marker

GOLDEN = Path(__file__).parents[1] / "golden" / "unclean"
NOW_MS = 1_800_000_000_000
TOPICS = {"t": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}


def files(directory: Path) -> dict[str, bytes]:
    """The files of a log, without those that a broker removes later."""
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.suffix != ".deleted"}


def unclean(case: str, log_dir: Path) -> Path:
    shutil.copytree(GOLDEN / case / "t-0", log_dir / "t-0")
    return log_dir


def expected_by_kafka(case: str) -> dict[str, bytes]:
    return files(GOLDEN / case / "expected-by-kafka" / "t-0")


def cleaned(log_dir: Path, copy: Path | None = None) -> tuple[LogReport, Path]:
    """What is reported, and the log: in place or a copy."""
    if copy is None:
        return clean_locally(log_dir, NOW_MS, TOPICS)["t"], log_dir / "t-0"
    request = replace(request_for(log_dir, NOW_MS, TOPICS), output_dir=str(copy))
    return clean_logs(LocalPasses, request).logs[0], copy / "t-0"


@pytest.mark.parametrize(("case", "in_place"), [("empty-txnindex", True), ("garbage-tail", True), ("garbage-tail", False)])
def test_the_bytes_are_those_of_kafkas_cleaner(case: str, in_place: bool, tmp_path: Path) -> None:
    """A run in place leaves garbage to the broker that starts there, a copy has none."""
    report, log = cleaned(unclean(case, tmp_path / "logs"), None if in_place else tmp_path / "copy")
    assert report.status is LogStatus.CLEANED
    active, expected = f"{24:020d}.log", expected_by_kafka(case)
    if case == "garbage-tail" and in_place:
        expected[active] = (GOLDEN / case / "t-0" / active).read_bytes()
    assert files(log) == expected


@pytest.mark.parametrize("in_place", [True, False])
def test_a_run_leaves_the_leader_epochs_that_a_killed_broker_had_not_stored(tmp_path: Path, in_place: bool) -> None:
    """Cleaning may remove the batches from which a broker would assign them."""
    log_dir = unclean("garbage-tail", tmp_path / "logs")
    (log_dir / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    report, log = cleaned(log_dir, None if in_place else tmp_path / "copy")
    assert report.status is LogStatus.CLEANED
    assert (log / LEADER_EPOCHS).read_text() == "0\n1\n0 0\n"
    assert (log_dir / "t-0" / LEADER_EPOCHS).exists() is in_place


def test_after_a_clean_shutdown_garbage_is_damage(tmp_path: Path) -> None:
    (unclean("garbage-tail", tmp_path) / CLEAN_SHUTDOWN).touch()
    assert cleaned(tmp_path)[0].status is LogStatus.FAILED


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
    assert cleaned(tmp_path)[0].status is LogStatus.CLEANED
    expected = expected_by_kafka("empty-txnindex")
    del expected[f"{4:020d}.txnindex"]
    assert {name: data for name, data in files(tmp_path / "t-0").items() if not name.endswith(".snapshot")} == expected


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
    assert cleaned(tmp_path)[0].status is LogStatus.CLEANED
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
    report, _ = cleaned(tmp_path)
    assert (report.status, report.end_offset, report.superseded_records) == (LogStatus.CLEANED, 2, 1)
    assert f"{path}: the transaction from offset 1 on has no marker, and the producer snapshots do not have it" in caplog.text
    assert cleaned(tmp_path.with_name("replayed"))[0].reason_code == "held"


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
