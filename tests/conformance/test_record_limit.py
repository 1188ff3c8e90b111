"""A log with a record over ``max.decompressed.message.bytes`` is refused by Kafka and by the job, any other cleaned by both.

Each log has one record whose size is at the limit or one byte above it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from compaction.config.entries import MAX_RECORD
from compaction.config.request import ComparisonRequest
from compaction.config.sources import Policy
from compaction.policies.compare_policies import compare_with
from compaction.policies.comparison import OutcomeStatus
from compaction.report import LogReport, LogStatus
from tests.conformance.compare import differences
from tests.kafka.cleaner import clean_partition
from tests.kafka.encode import ABORT, COMMIT, Batch, Legacy, Producer, Record, marker
from tests.kafka.gateway import Gateway, unconverted_errors
from tests.kafka.log import KafkaLog, Opening
from tests.local_job import clean_locally, request_for
from tests.local_passes import LocalPasses

pytestmark = pytest.mark.kafka

T, NOW_MS = 1_700_000_000_000, 1_700_001_000_000
KEY, VALUE = b"k", b"v" * 400
#: attributes, deltas of time and offset, key, value, number of headers
BODY_BYTES = 1 + 1 + 1 + 2 + 2 + len(VALUE) + 1
PRODUCER = Producer(7)


def large(offset: int) -> Record:
    """The record that is as large as the limit, in a batch of its own."""
    return Record(offset, T, KEY, VALUE)


def transactional(outcome: int) -> list[bytes]:
    """A transaction with the large record."""
    batch = Batch([large(0)], "gzip", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    return [batch.encode(), marker(1, T, PRODUCER, outcome)]


#: the batches up to offset 2, the size of the large record, and whether Kafka reads it
LOGS: dict[str, tuple[Callable[[], list[bytes]], int, bool]] = {
    "compressed": (lambda: [Batch([large(0), Record(1, T, b"x", b"")], "lz4").encode()], BODY_BYTES, True),
    "superseded": (lambda: [Batch([large(0)], "zstd").encode(), Batch([Record(1, T, KEY, b"")]).encode()], BODY_BYTES, True),
    "not-compressed": (lambda: [Batch([large(0), Record(1, T, b"x", b"")]).encode()], BODY_BYTES, False),
    "committed": (lambda: transactional(COMMIT), BODY_BYTES, True),
    "aborted-by-an-active-producer": (lambda: transactional(ABORT), BODY_BYTES, True),
    "wrapper-v1": (lambda: [Legacy([large(0), Record(1, T, b"x", b"")], 1, "snappy").encode()], 22 + 401, True),
    "wrapper-v0": (lambda: [Legacy([large(0), Record(1, T, b"x", b"")], 0, "gzip").encode()], 14 + 401, True),
    "message": (lambda: [Legacy([large(0), Record(1, T, b"x", b"")], 1).encode()], 22 + 401, False),
}


def config(limit: int) -> dict[str, str]:
    """The topic's settings."""
    return {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", MAX_RECORD: str(limit)}


def log_of(gateway: Gateway, path: Path, batches: list[bytes]) -> None:
    """Those batches, in an inactive segment, and one more."""
    with KafkaLog(gateway, path, Opening(NOW_MS, {"cleanup.policy": "compact"})) as log:
        log.write([[*batches, Batch([Record(2, T, b"y", b"")]).encode()], [Batch([Record(3, T, b"z", b"")]).encode()]])


def job(log_dir: Path, limit: int, version: str) -> LogReport:
    """The job's report."""
    return clean_locally(log_dir, NOW_MS, {"t": config(limit)}, kafka_version=version)["t"]


@pytest.mark.parametrize("name", LOGS)
def test_a_log_fails_as_in_kafka_if_a_record_is_larger(gateway: Gateway, tmp_path: Path, name: str) -> None:
    batches, size, read = LOGS[name]
    for limit in (size - 1, size):
        ours, kafkas = (tmp_path / f"{side}-{limit}" / "t-0" for side in ("ours", "kafkas"))
        log_of(gateway, kafkas, batches())
        shutil.copytree(kafkas, ours)
        refused = read and limit < size
        if refused:
            with unconverted_errors(), pytest.raises(Py4JJavaError, match=f"{limit}"):
                clean_partition(gateway, kafkas, Opening(NOW_MS, config(limit), clean_shutdown=True))
            before = {file.name: file.read_bytes() for file in ours.iterdir()}
            report = job(ours.parent, limit, gateway.version)
            what = rf"0\.log at byte 0: compressed batch has a record of {size} bytes, {MAX_RECORD} is {limit};.* to {size} "
            assert report.status is LogStatus.FAILED
            assert re.search(what, report.reason), report.reason
            assert {file.name: file.read_bytes() for file in ours.iterdir()} == before
        else:
            clean_partition(gateway, kafkas, Opening(NOW_MS, config(limit), clean_shutdown=True))
            assert job(ours.parent, limit, gateway.version).status is LogStatus.CLEANED
            assert differences(gateway, ours, kafkas) == []


def test_versions_without_the_setting_and_topics_without_a_limit_take_any_record(gateway: Gateway, tmp_path: Path) -> None:
    batches, size, _ = LOGS["compressed"]
    for version, limit, status in (
        ("4.3.1", 1, LogStatus.CLEANED), ("4.2.2", size - 1, LogStatus.FAILED), ("4.2.2", size, LogStatus.CLEANED),
    ):  # fmt: skip
        path = tmp_path / f"{version}-{limit}" / "t-0"
        log_of(gateway, path, batches())
        assert job(path.parent, limit, version).status is status
    path = tmp_path / "unlimited" / "t-0"
    log_of(gateway, path, batches())
    topics = {"t": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}
    assert clean_locally(path.parent, NOW_MS, topics)["t"].status is LogStatus.CLEANED


def test_a_comparison_and_a_dry_run_fail_the_log_under_that_policy_only(gateway: Gateway, tmp_path: Path) -> None:
    batches, size, _ = LOGS["compressed"]
    log_of(gateway, tmp_path / "t-0", batches())
    policies = tuple(Policy.read(f"{MAX_RECORD}={limit}") for limit in (size - 1, size))
    topics = {"t": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}
    (log,) = compare_with(LocalPasses, ComparisonRequest(request_for(tmp_path, NOW_MS, topics, dry_run=True), policies)).logs
    assert [outcome.status for outcome in log.outcomes] == [OutcomeStatus.FAILED, OutcomeStatus.CLEANED]
    report = clean_locally(tmp_path, NOW_MS, {"t": config(size - 1)}, dry_run=True)["t"]
    assert report.status is LogStatus.FAILED
    assert MAX_RECORD in report.reason
