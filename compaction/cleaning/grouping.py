"""Groups adjacent segments into output segments.

The rule: a group takes the next segment in ascending order if, with that segment,

1. the ``.log`` files total at most ``segment.bytes``;
2. the offset indexes total at most ``segment.index.bytes``, and so do the time indexes;
3. the last offset less the group's base offset fits an index's signed 32 bits. The last offset is estimated, to avoid reading
   the segment: one below the next segment's base, or below the first uncleanable offset for the last segment. An empty segment
   is exempt since Kafka 3.0 (KAFKA-12889), so that no empty segment remains every 2^31 offsets.

Mirrors ``Cleaner.groupSegmentsBySize`` and ``lastOffsetForFirstSegment``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compaction.cleaning.kafka_rules import NEWEST, RULES, KafkaRules
from compaction.cleaning.log_view import Segment
from compaction.formats.indexes import MAX_RELATIVE_OFFSET


@dataclass(frozen=True)
class Group:
    """Segments that become one output: named by the first base offset, with the last segment's modification time."""

    segments: tuple[Segment, ...]

    @property
    def base_offset(self) -> int:
        return self.segments[0].base_offset

    @property
    def mtime_ns(self) -> int:
        """Modification time of the output, nanoseconds."""
        return self.segments[-1].mtime_ns

    @property
    def size_bytes(self) -> int:
        """Bytes of the input ``.log`` files."""
        return sum(segment.size_bytes for segment in self.segments)

    def __str__(self) -> str:
        """E.g. ``[0, 1500, 3000] 12345 bytes``: the base offsets of the inputs."""
        bases = ", ".join(str(segment.base_offset) for segment in self.segments)
        return f"[{bases}] {self.size_bytes} bytes"


def group_segments(
    segments: Sequence[Segment],
    *,
    max_bytes: int,
    max_index_bytes: int,
    first_uncleanable_offset: int,
    rules: KafkaRules = RULES[NEWEST],
) -> tuple[Group, ...]:
    """The groups in ascending order; ``first_uncleanable_offset`` is exclusive."""
    groups: list[list[Segment]] = []
    totals = _Totals(0, 0, 0)
    for position, segment in enumerate(segments):
        following = segments[position + 1].base_offset if position + 1 < len(segments) else first_uncleanable_offset
        joined = totals.plus(segment)
        fits = joined.fit(max_bytes, max_index_bytes)
        exempt = rules.groups_empty_segments and segment.size_bytes == 0
        if groups and fits and (exempt or _in_range(following - 1, groups[-1][0])):
            groups[-1].append(segment)
            totals = joined
        else:
            groups.append([segment])
            totals = _Totals(0, 0, 0).plus(segment)
    return tuple(Group(tuple(group)) for group in groups)


class _Totals(NamedTuple):
    """Sizes of a group, bytes."""

    log_bytes: int
    index_bytes: int
    time_index_bytes: int

    def plus(self, segment: Segment) -> _Totals:
        return _Totals(
            self.log_bytes + segment.size_bytes,
            self.index_bytes + segment.index_bytes,
            self.time_index_bytes + segment.time_index_bytes,
        )

    def fit(self, max_bytes: int, max_index_bytes: int) -> bool:
        return self.log_bytes <= max_bytes and max(self.index_bytes, self.time_index_bytes) <= max_index_bytes


def _in_range(last_offset: int, first: Segment) -> bool:
    return last_offset - first.base_offset <= MAX_RELATIVE_OFFSET


def overflows(segment: Segment) -> bool:
    """Whether the segment has offsets that its indexes cannot express; it must be split before it is cleaned.

    Mirrors ``LogSegment.hasOverflow`` (KAFKA-6264).
    """
    return segment.next_offset - 1 - segment.base_offset > MAX_RELATIVE_OFFSET
