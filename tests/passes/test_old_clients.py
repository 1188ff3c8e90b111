"""Batches whose last offset delta is 0 for any number of records, as an old Go client wrote them: Kafka's cleaner goes by the
offsets of the records, and so does the job."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import pytest

from compaction.certifier.certificate import Status
from compaction.certifier.find_pairs import VerifyRequest
from compaction.report import LogStatus
from compaction.run.sizing import Sizes
from tests.certifier.certify import certify
from tests.local_job import KAFKA, clean_locally, resolver_of, write_offsets
from tests.oracle.cleaner import NaiveConfig, NaiveRound, after_round, clean_log_naively
from tests.oracle.disk import read_partition, write_partition
from tests.oracle.logs import Batching, LogBuilder, Sent
from tests.oracle.segments import NaiveSegment

NOW_MS = 1_800_000_000_000
TOPICS = {"t": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}


def without_delta(raw: bytes) -> bytes:
    """The batch with a last offset delta of 0."""
    after_crc = raw[21:23] + struct.pack(">i", 0) + raw[27:]
    return raw[:17] + struct.pack(">I", google_crc32c.value(after_crc)) + after_crc


def old_log(gap: int, codec: int = 0) -> list[NaiveSegment]:
    """A log of such batches of three records; the next one begins ``gap`` offsets after the first record."""
    log, how = LogBuilder(mangle=without_delta), Batching(codec=codec)
    for values in ((b"0", b"0", b"0"), (b"1", None, b"1"), (b"2", b"2", None)):
        for keys in (b"abc", b"bcd", b"xay"):
            log.batch([Sent(keys[at : at + 1], values[at]) for at in range(3)], how)
            log.skip(gap - 1)
        log.roll(1_000_000)
    log.batch([Sent(b"e", b"e")])
    return log.build()


@pytest.mark.parametrize("codec", [0, 4], ids=["plain", "zstd"])
@pytest.mark.parametrize("first_dirty", [0, 1, 8, 9, 11])
@pytest.mark.parametrize("sizes", [None, Sizes(200, 200, 2)], ids=["one task", "many tasks"])
def test_records_past_the_last_offset_of_their_batch_are_cleaned(
    tmp_path: Path, codec: int, first_dirty: int, sizes: Sizes | None
) -> None:
    segments = old_log(3, codec)
    for place in ("before", "logs"):
        write_partition(tmp_path / place / "t-0", segments)
        write_offsets(tmp_path / place, cleaner_offsets={"t": first_dirty})
    report = clean_locally(tmp_path / "logs", NOW_MS, TOPICS, sizes)["t"]
    assert report.status is LogStatus.CLEANED, report.reason
    for file in (tmp_path / "logs/t-0").glob("*.deleted"):
        file.unlink()
    expected = clean_log_naively(segments, NaiveConfig(), NaiveRound(first_dirty, segments[-1].base_offset, NOW_MS))
    assert read_partition(tmp_path / "logs/t-0") == after_round(segments, expected)
    given = resolver_of(TOPICS)
    request = VerifyRequest(
        (str(tmp_path / "before"),), (str(tmp_path / "logs"),), NOW_MS, exact=True, resolver=given, kafka_version=KAFKA
    )
    (found,) = certify(request).logs
    assert found.status is Status.HOLDS, (found.reason, found.violations)


def test_the_last_batch_of_an_export_is_cleaned(tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", old_log(3)[:-1])
    report = clean_locally(tmp_path, NOW_MS, TOPICS, include_active=True)["t"]
    assert (report.status, report.records_after) == (LogStatus.CLEANED, 6)


@pytest.mark.parametrize("gap", [1, 2])
@pytest.mark.parametrize("sizes", [None, Sizes(200, 200, 2)], ids=["one task", "many tasks"])
def test_batches_that_share_offsets_are_refused(tmp_path: Path, gap: int, sizes: Sizes | None) -> None:
    segments: Sequence[NaiveSegment] = old_log(gap)
    write_partition(tmp_path / "t-0", segments)
    before = shutil.copytree(tmp_path / "t-0", tmp_path / "before")
    report = clean_locally(tmp_path, NOW_MS, TOPICS, sizes)["t"]
    assert report.status is LogStatus.FAILED
    assert "expected" in report.reason and "or more" in report.reason
    assert read_partition(tmp_path / "t-0") == read_partition(before)
