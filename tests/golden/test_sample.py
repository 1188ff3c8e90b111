"""The sample is complete: tests and demonstrations rely on these properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import SAMPLE, unpack_sample
from tests.golden.make_sample import CLEANED, TOPICS


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, unpacked."""
    return unpack_sample(tmp_path_factory.mktemp("sample"))


def test_the_archive_is_small() -> None:
    assert SAMPLE.stat().st_size < 2_000_000


def test_it_has_every_topic_and_all_files_that_a_broker_needs(log_dir: Path) -> None:
    found = {path.name for path in log_dir.iterdir()}
    wanted = {f"{topic}-{partition}" for topic, (partitions, _) in TOPICS.items() for partition in range(partitions)}
    internal = {"__cluster_metadata-0", "__consumer_offsets-0", "__transaction_state-0"}
    files = {".kafka_cleanshutdown", "meta.properties", "cleaner-offset-checkpoint", "replication-offset-checkpoint"}
    files |= {"log-start-offset-checkpoint", "recovery-point-offset-checkpoint", "bootstrap.checkpoint"}
    assert found == wanted | internal | files | {f"{CLEANED}-0"}


def test_only_one_log_was_cleaned(log_dir: Path) -> None:
    version, count, *entries = (log_dir / "cleaner-offset-checkpoint").read_text(encoding="utf-8").splitlines()
    assert (version, count, [entry.split()[:2] for entry in entries]) == ("0", "1", [[CLEANED, "0"]])


@pytest.mark.parametrize("log", ["orders-0", "customers-0", "payments-1", "prices-0", "clickstream-0", "__consumer_offsets-0"])
def test_logs_have_several_segments_whose_indexes_are_trimmed(log_dir: Path, log: str) -> None:
    segments = sorted((log_dir / log).glob("*.log"))
    assert len(segments) > 4
    for segment in segments:
        index, time_index = (segment.with_suffix(kind).stat().st_size for kind in (".index", ".timeindex"))
        assert index % 8 == time_index % 12 == 0
        assert index + time_index < 1000


def test_modification_times_are_those_of_the_broker(log_dir: Path) -> None:
    times = [int(path.stat().st_mtime) for path in sorted((log_dir / "payments-0").glob("*.log"))]
    assert times == sorted(times)
    assert times[-1] - times[0] < 3600


def test_aborted_transactions_are_indexed(log_dir: Path) -> None:
    sizes = [path.stat().st_size for path in (log_dir / "payments-0").glob("*.txnindex")]
    assert sum(sizes) >= 3 * 34
    assert all(size % 34 == 0 for size in sizes)
