"""The sample of a real broker's directory, cleaned as a user would, is equal to Kafka's result, and a broker serves it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.broker_dir import checkpoint, clean_as_broker, logs_of
from tests.conformance.compare import differences
from tests.conformance.ours import clean_ours
from tests.conformance.segment_bytes import batches_of, expected_indexes, segments_of
from tests.golden import unpack_sample
from tests.golden.make_sample import CLEANED, COMPACT, TOPICS
from tests.kafka.broker import Broker
from tests.kafka.cleaner import CleanResult
from tests.kafka.clients import Clients, Consumed
from tests.kafka.gateway import Gateway

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

HOUR_MS = 3_600_000
INTERNAL = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
#: topic-level settings as the broker has them
CONFIGS: Mapping[str, Mapping[str, str]] = {
    **{topic: config for topic, (_, config) in TOPICS.items()},
    CLEANED: COMPACT,
    "__consumer_offsets": INTERNAL,
    "__transaction_state": INTERNAL,
}


@dataclass(frozen=True)
class Both:
    """The sample cleaned by both: log directories, the job's report by log and Kafka's outcomes."""

    ours: Path
    kafkas: Path
    report: Mapping[str, Mapping[str, Any]]
    outcomes: Mapping[str, CleanResult | None]


@pytest.fixture(scope="module")
def both(spark: SparkSession, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """One round an hour after the sample was created, with its idempotent producers still active."""
    root = tmp_path_factory.mktemp("both")
    kafkas = unpack_sample(root)
    ours = root / "ours"
    shutil.copytree(kafkas, ours)
    as_of_ms = int((kafkas / "meta.properties").stat().st_mtime) * 1000 + HOUR_MS
    outcomes = {log: clean_as_broker(gateway, kafkas, log, CONFIGS[log.rsplit("-", 1)[0]], as_of_ms) for log in logs_of(kafkas)}
    return Both(ours, kafkas, clean_ours(spark, ours, as_of_ms), outcomes)


def test_every_log_equals_kafkas(both: Both, gateway: Gateway) -> None:
    found = [text for log in logs_of(both.kafkas) for text in differences(gateway, both.ours / log, both.kafkas / log)]
    assert found == []


def test_the_report_has_kafkas_figures(both: Both) -> None:
    for log, outcome in both.outcomes.items():
        ours = both.report[log]
        if outcome is None:
            assert ours["status"] == "skipped", ours["reason"]
        else:
            counted = (ours["end_offset"], ours["records_before"], ours["records_after"], ours["bytes_before"])
            stats = outcome.stats
            assert counted == (outcome.end_offset, stats.messages_read, stats.messages_written, stats.bytes_read), log


def test_the_checkpoint_moves_to_kafkas_end_offsets(both: Both) -> None:
    kafkas = {log: outcome.end_offset for log, outcome in both.outcomes.items() if outcome is not None}
    assert checkpoint(both.ours / "cleaner-offset-checkpoint") == {f"{CLEANED}-0": 2000, **kafkas}


def test_the_sample_has_every_reason_to_skip(both: Both) -> None:
    skipped = {log for log, outcome in both.outcomes.items() if outcome is None}
    assert skipped == {
        "__transaction_state-0",
        "clickstream-0",
        "clickstream-1",
        "inventory-0",
        "ledger-0",
        "never-written-0",
    }
    assert len({both.report[log]["reason"] for log in skipped}) >= 4


def test_indexes_follow_kafkas_rule(both: Both) -> None:
    """The comparison of compressed segments depends on it."""
    for log in ("orders-0", "customers-0", "payments-0", "__consumer_offsets-0"):
        base, segment = next(iter(segments_of(both.kafkas / log).items()))
        indexes = tuple(segment.with_suffix(suffix).read_bytes() for suffix in (".index", ".timeindex"))
        assert expected_indexes(base, batches_of(segment.read_bytes()), 4096) == indexes


@pytest.mark.slow
def test_consumers_read_the_same_from_both(both: Both, gateway: Gateway) -> None:
    with ThreadPoolExecutor(2) as pool:
        ours, kafkas = pool.map(lambda log_dir: read_everything(gateway, log_dir), (both.ours, both.kafkas))
    assert ours.offsets == kafkas.offsets
    assert ours.committed == kafkas.committed
    assert ours.all == kafkas.all
    assert 450 <= len(ours.all["orders"]) < 1500


@dataclass(frozen=True)
class Served:
    """The data that a broker serves, by topic: first and end offset of each partition, all records, the committed ones."""

    offsets: Mapping[str, Mapping[int, tuple[int, int]]]
    all: Mapping[str, list[Consumed]]
    committed: Mapping[str, list[Consumed]]


def read_everything(gateway: Gateway, log_dir: Path) -> Served:
    """Starts a broker on the directory and reads every topic.

    The broker soon ends the transaction that is open in the sample, so the end offset of its topic, and which of its records
    are committed, depend on timing.
    """
    topics = [*TOPICS, CLEANED, "__consumer_offsets"]
    settled = [topic for topic in topics if topic != "payments-open"]
    with Broker(log_dir) as broker:
        clients = Clients(gateway, broker.bootstrap)
        served = Served(
            {topic: clients.end_offsets(topic) for topic in settled},
            {topic: clients.read_all(topic) for topic in topics},
            {topic: clients.read_all(topic, committed_only=True) for topic in settled},
        )
        assert not broker.errors()
        assert "corrupt" not in broker.log_text().lower()
    return served
