"""Logs at rest as plain values, for tests of decisions: what a test does not name is ordinary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from compaction.names import TopicPartition
from compaction.rules.log_view import LogView, Segment

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def segment(base_offset: int, size_bytes: int = 100, **given: Any) -> Segment:
    """A segment of the day before ``NOW_MS``, with indexes of one entry; its offsets are set by ``log``."""
    stamp_ms = given.pop("timestamp_ms", NOW_MS - DAY_MS)
    values: dict[str, Any] = {
        "base_offset": base_offset,
        "size_bytes": size_bytes,
        "mtime_ns": stamp_ms * 1_000_000,
        "index_bytes": 8,
        "time_index_bytes": 12,
        "largest_timestamp_ms": stamp_ms,
        "first_batch_timestamp_ms": stamp_ms,
        "next_offset": base_offset,
    }
    return Segment(**{**values, **given})


def log(*segments: Segment, end: int, **given: Any) -> LogView:
    """A log of these segments that ends at ``end``; each segment reaches up to the next one."""
    ends = [*(each.base_offset for each in segments), end][1:]
    whole = tuple(
        each if each.next_offset != each.base_offset else replace(each, next_offset=upto)
        for each, upto in zip(segments, ends, strict=True)
    )
    values: dict[str, Any] = {
        "topic_partition": TopicPartition("orders", 0),
        "log_dir": "/data",
        "path": "/data/orders-0",
        "segments": whole,
        "log_start_offset": segments[0].base_offset if segments else 0,
        "high_watermark": end,
        "last_stable_offset": given.get("high_watermark", end),
        "log_end_offset": end,
        "cleaner_checkpoint": None,
    }
    return LogView(**{**values, **given})
