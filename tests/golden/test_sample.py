"""The sample is complete: tests and demonstrations rely on these properties."""

from __future__ import annotations

from pathlib import Path

from tests.golden import SAMPLE, unpack_sample
from tests.golden.make_sample import CLEANED, TOPICS


def test_the_archive_is_small() -> None:
    assert SAMPLE.stat().st_size < 2_000_000


def test_it_has_all_files_of_a_stopped_broker_which_has_cleaned_one_log_in_many_segments(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    wanted = {f"{topic}-{partition}" for topic, (partitions, _) in TOPICS.items() for partition in range(partitions)}
    wanted |= {"__cluster_metadata-0", "__consumer_offsets-0", "__transaction_state-0", f"{CLEANED}-0"}
    wanted |= {f"{name}-offset-checkpoint" for name in ("cleaner", "replication", "log-start", "recovery-point")}
    assert {path.name for path in log_dir.iterdir()} == wanted | {
        ".kafka_cleanshutdown",
        "meta.properties",
        "bootstrap.checkpoint",
    }
    version, count, entry = (log_dir / "cleaner-offset-checkpoint").read_text(encoding="utf-8").splitlines()
    assert (version, count, entry.split()[:2]) == ("0", "1", [CLEANED, "0"])
    for log in ("orders-0", "customers-0", "payments-1", "prices-0", "clickstream-0", "__consumer_offsets-0"):
        segments = sorted((log_dir / log).glob("*.log"))
        assert len(segments) > 4, log
        # trimmed indexes
        sizes = [
            (path.with_suffix(".index").stat().st_size, path.with_suffix(".timeindex").stat().st_size) for path in segments
        ]
        assert all(index % 8 == times % 12 == 0 and index + times < 1000 for index, times in sizes), log
    assert sum(path.stat().st_size for path in (log_dir / "payments-0").glob("*.txnindex")) >= 3 * 34
