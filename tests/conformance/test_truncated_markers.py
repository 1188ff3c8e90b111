"""A log that Kafka truncated over a marker when its producers had expired is cleaned as by Kafka: it has no such transaction.

``UnifiedLog.rebuildProducerState`` replays nothing if it knew no producer before the truncation. Its next snapshots lack the
producer of the transaction that the truncation left without a marker.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compaction.certifier.certificate import Status
from compaction.names import CLEAN_SHUTDOWN
from compaction.report import LogStatus
from tests.certifier.certify import certify_copy
from tests.conformance.compare import differences
from tests.kafka.cleaner import CleanResult, clean_partition_if_due
from tests.kafka.encode import Producer
from tests.kafka.gateway import Gateway
from tests.kafka.log import KafkaLog, Opening
from tests.local_job import clean_locally
from tests.scenarios.language import ROUNDS
from tests.scenarios.writer import DAY, T, Writer

pytestmark = pytest.mark.kafka

CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def truncated_over_a_marker(gateway: Gateway, path: Path, *, committed: bool, same_segment: bool) -> None:
    """A log whose transaction from offset 2 to 3 has lost its marker at offset 4; its producers had expired before."""
    with KafkaLog(gateway, path, Opening(T, CONFIG)) as log:
        writer, producer = Writer(), Producer(1)
        log.append(writer.batch("ab"))
        log.append(writer.sent(producer, "ac"))
        if not same_segment:
            log.roll()
        end = writer.offset
        log.append((writer.commit if committed else writer.abort)(producer))
        log.raise_high_watermark()
        log.clock.set(T + 2 * DAY)
        log.expire_producers()
        log.truncate(end)
        writer.offset = end
        log.append(writer.batch("b"))
        log.roll()
        log.append(writer.batch("d"))
        log.raise_high_watermark()


@pytest.mark.parametrize("same_segment", [True, False])
@pytest.mark.parametrize("committed", [False, True])
def test_a_log_truncated_over_a_marker_of_an_expired_producer_is_cleaned_as_by_kafka(
    gateway: Gateway, tmp_path: Path, committed: bool, same_segment: bool
) -> None:
    before, ours, kafkas = (tmp_path / name / "t-0" for name in ("before", "ours", "kafkas"))
    truncated_over_a_marker(gateway, kafkas, committed=committed, same_segment=same_segment)
    for copy in (before, ours):
        shutil.copytree(kafkas, copy)
        (copy.parent / CLEAN_SHUTDOWN).touch()
    report = clean_locally(ours.parent, ROUNDS[0], {"t": CONFIG})["t"]
    cleaned = clean_partition_if_due(gateway, kafkas, Opening(ROUNDS[0], CONFIG), None)
    assert differences(gateway, ours, kafkas) == []
    # a snapshot at the end of the segment has the transaction: Kafka loads it, and holds the log back
    assert (report.status is LogStatus.CLEANED) == isinstance(cleaned, CleanResult) == same_segment, report.reason
    if isinstance(cleaned, CleanResult):
        assert (report.end_offset, report.records_after) == (cleaned.end_offset, cleaned.stats.messages_written)
        (certified,) = certify_copy(before.parent, ours.parent, ROUNDS[0], {"t": CONFIG}).logs
        assert (certified.status, certified.violations) == (Status.HOLDS, ())
