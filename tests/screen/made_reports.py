"""Reports of runs, made by hand: with every outcome, and with many logs."""

from __future__ import annotations

from compaction.report import LogReport, LogStatus, RunReport

AS_OF_MS = 1_700_000_000_000


def cleaned(topic: str, partition: int, size: int, left: int, **more: object) -> LogReport:
    """A log of ``size`` kB of which cleaning leaves ``left`` per cent; a record is 100 bytes."""
    before, after = size * 1000, size * 10 * left
    fields: dict[str, object] = {
        "first_dirty_offset": 0, "end_offset": size * 10, "bytes_before": before, "bytes_after": after,
        "records_before": size * 10, "records_after": size * left // 10, "segments_before": 9, "segments_after": 1,
        "superseded_records": size * 10 - size * left // 10, "keys": size * left // 10, "compacted": True,
        "removed_records": size * 10 - size * left // 10,
        "stored_records_before": size * 10, "stored_records_after": size * left // 10,
        "disk_bytes_before": before + 5000, "disk_bytes_after": after + 5000, "deleted_bytes": before + 300,
    }  # fmt: skip
    return LogReport(topic, partition, "/data", LogStatus.CLEANED, "over 0.5", **{**fields, **more})  # type: ignore[arg-type]


def expired(topic: str, partition: int, size: int, segments: int) -> LogReport:
    """A log that loses segments to the delete policy, and nothing else."""
    return LogReport(
        topic, partition, "/data", LogStatus.CLEANED, f"{segments} of 9 segments expired", first_dirty_offset=0,
        end_offset=9, bytes_before=9 * size, bytes_after=(9 - segments) * size, segments_before=9,
        segments_after=9 - segments, expired_segments=segments, expired_bytes=segments * size,
        disk_bytes_before=9 * size, disk_bytes_after=(9 - segments) * size, deleted_bytes=segments * size,
    )  # fmt: skip


def skipped(topic: str, partition: int, size: int, code: str, reason: str) -> LogReport:
    return LogReport(
        topic, partition, "/data", LogStatus.SKIPPED, reason, reason_code=code, policy_unknown=code == "policy_unknown",
        disk_bytes_before=size, disk_bytes_after=size,
    )  # fmt: skip


def failed(topic: str, partition: int, reason: str) -> LogReport:
    return LogReport(topic, partition, "/data", LogStatus.FAILED, reason, reason_code="error")


def every_outcome(*, dry_run: bool = False) -> RunReport:
    """Eight logs, no two of which have the same outcome."""
    logs = (
        skipped("never-written", 0, 0, "empty", "empty: the log has no bytes"),
        cleaned(
            "orders",
            3,
            2000,
            25,
            superseded_records=14_994,
            tombstones_removed=1,
            aborted_records=30,
            invalid_records=5,
            markers_removed=2,
            removed_records=15_032,
            stored_records_before=20_032,
        ),
        cleaned("a-topic-with-a-name-that-is-longer-than-most-terminals-have-room-for", 12, 800, 99),
        cleaned("sessions", 0, 90, 50, expired_segments=3, expired_bytes=12_500, expired_records=125),
        expired("clicks", 0, 70_000, 1),
        skipped("sales", 0, 1_500_000, "policy", "policy: cleanup.policy is delete (broker.properties line 4)"),
        skipped("prices", 1, 44_000, "policy_unknown", "refused: cleanup.policy is unknown: give it by --set"),
        failed("bad", 1, "/data/bad-1/00000000000000000000.log at byte 61: batch fails its CRC"),
    )
    return RunReport("r-1", AS_OF_MS, dry_run, logs, seconds=72.5)


def many_logs(*, dry_run: bool = False) -> RunReport:
    """316 logs of 40 topics."""
    logs = [
        cleaned(f"topic-{topic:02}", partition, 10 * topic + partition + 1, 30 + topic)
        if (topic + partition) % 5
        else skipped(f"topic-{topic:02}", partition, 1000 * topic, "ratio", "ratio: too little is dirty")
        for topic in range(40)
        for partition in range(8)
    ]
    return RunReport("r-2", AS_OF_MS, dry_run, (*logs[:310], *logs[314:]), seconds=3.25)
