"""Checks a log's segments, start and end offset, cleaner checkpoint, and the segments deleted by the delete policy."""

from __future__ import annotations

from collections.abc import Sequence

from compaction.certifier.checks.log_pair import LogPair
from compaction.certifier.checks.segment_walk import SegmentWalk
from compaction.certifier.checks.violations import Findings
from compaction.names import CLEANER_OFFSETS


def log_end(walks: Sequence[SegmentWalk]) -> int:
    """The log end offset of a side."""
    return walks[-1].next_offset


def check_log(pair: LogPair, before: Sequence[SegmentWalk], after: Sequence[SegmentWalk], findings: Findings) -> None:
    """Check one log. A segment of ``after`` that is unreadable from some offset is a violation at that offset."""
    for walk in after:
        findings.join(walk.findings)
        if walk.error is not None:
            findings.add(walk.error_offset, walk.error)
    _check_segments(pair, before, after, findings)
    _check_ends(pair, before, after, findings)
    _check_checkpoint(pair, before, after, findings)
    _check_expiry(pair, before, findings)


def _check_segments(pair: LogPair, before: Sequence[SegmentWalk], after: Sequence[SegmentWalk], findings: Findings) -> None:
    base_offsets = {walk.task.files.base_offset for walk in before} | {log_end(before)}
    for walk, following in zip(after, [*after[1:], None], strict=True):
        base = walk.task.files.base_offset
        # a segment whose offsets overflow its base is split at a batch
        if base >= pair.compared_from and base not in base_offsets and base != walk.first_offset:
            findings.add(base, "no segment of the source has this base offset")
        if following is not None and walk.next_offset > following.task.files.base_offset:
            findings.add(following.task.files.base_offset, "segment begins before the previous one ends")


def _check_ends(pair: LogPair, before: Sequence[SegmentWalk], after: Sequence[SegmentWalk], findings: Findings) -> None:
    end, expected = log_end(after), log_end(before)
    if end != expected:
        findings.add(min(end, expected), f"log ends at offset {end}, expected {expected}")
    start = pair.after.log_start_offset
    if start < pair.before.log_start_offset:
        findings.add(start, f"log starts at offset {start}, expected {pair.before.log_start_offset} or more")
    if start > expected:
        findings.add(start, f"log starts at offset {start}, past its end {expected}")
    if not pair.rules.include_active and start < expected:
        _check_active(before[-1], after[-1], findings)


def _check_active(before: SegmentWalk, after: SegmentWalk, findings: Findings) -> None:
    """The active segment is unchanged, except for a torn tail."""
    same = before.task.files.base_offset == after.task.files.base_offset and before.size_bytes == after.size_bytes
    if not (same and after.same_log):
        findings.add(before.task.files.base_offset, "active segment was changed")


def _check_checkpoint(pair: LogPair, before: Sequence[SegmentWalk], after: Sequence[SegmentWalk], findings: Findings) -> None:
    cleaned_to = pair.after.cleaned_to
    if pair.rules.erases and cleaned_to != pair.before.cleaned_to:
        entries = f"has {_entry(cleaned_to)}, it had {_entry(pair.before.cleaned_to)}"
        message = f"{CLEANER_OFFSETS} {entries}: an erasure does not change it"
        findings.add(pair.after.log_start_offset, message)
        return
    if cleaned_to is None or cleaned_to == pair.before.cleaned_to:
        return
    end = log_end(before) if pair.rules.include_active else before[-1].task.files.base_offset
    if cleaned_to > end and cleaned_to > pair.after.log_start_offset:
        findings.add(cleaned_to, f"{CLEANER_OFFSETS} is past the first uncleanable offset, {end}")


def _entry(offset: int | None) -> str:
    return "no entry" if offset is None else f"offset {offset}"


def _check_expiry(pair: LogPair, before: Sequence[SegmentWalk], findings: Findings) -> None:
    """Each deleted segment is older than ``retention.ms``, or the rest of the log has ``retention.bytes``."""
    rules, start = pair.rules, pair.after.log_start_offset
    remaining_bytes = sum(walk.task.files.size_bytes for walk in before)
    ends = [walk.task.files.base_offset for walk in before[1:]] + [log_end(before)]
    if start > pair.before.log_start_offset and start not in ends:
        findings.add(start, "log start is not at the end of a segment")
    for walk, end in zip(before, ends, strict=True):
        size = walk.task.files.size_bytes
        remaining_bytes -= size
        if end > start or end <= pair.before.log_start_offset or not size:
            continue
        largest = walk.max_timestamp if walk.max_timestamp >= 0 else walk.task.files.mtime_ms
        by_time = 0 <= rules.retention_ms < rules.now_ms - largest
        by_size = 0 <= rules.retention_bytes <= remaining_bytes
        if not rules.deletes:
            findings.add(walk.task.files.base_offset, "segment was deleted though cleanup.policy does not include delete")
        elif not (by_time or by_size):
            findings.add(walk.task.files.base_offset, "segment was deleted before its retention ended")
