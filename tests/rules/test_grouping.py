"""Which segments are joined; the cases are those of Kafka's ``CleanerTest.testSegmentGrouping*``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compaction.config.resolver import TopicConfig
from compaction.formats.indexes import MAX_RELATIVE_OFFSET
from compaction.rules.log_view import Segment
from compaction.rules.plan import group_segments, overflows
from tests.rules.views import segment

UNBOUNDED = 2**31 - 1


def bases(
    segments: list[Segment],
    *,
    max_bytes: int = UNBOUNDED,
    max_index_bytes: int = UNBOUNDED,
    first_uncleanable_offset: int = 1 << 40,
) -> list[list[int]]:
    config = TopicConfig(segment_bytes=max_bytes, segment_index_bytes=max_index_bytes)
    groups = group_segments(segments, config, first_uncleanable_offset)
    return [[each.base_offset for each in group.segments] for group in groups]


TEN = [segment(base, 100, index_bytes=8, time_index_bytes=12) for base in range(0, 100, 10)]


def test_no_segments_make_no_group() -> None:
    assert bases([]) == []


@pytest.mark.parametrize(
    ("max_bytes", "max_index_bytes", "sizes"),
    [
        pytest.param(UNBOUNDED, UNBOUNDED, [10], id="everything fits into one group"),
        pytest.param(1, UNBOUNDED, [1] * 10, id="a segment over the bound has its own group"),
        pytest.param(UNBOUNDED, 1, [1] * 10, id="an index over the bound has its own group"),
        pytest.param(300, UNBOUNDED, [3, 3, 3, 1], id="bytes up to the bound, inclusive"),
        pytest.param(299, UNBOUNDED, [2] * 5, id="one byte short of three segments"),
        pytest.param(UNBOUNDED, 36, [3, 3, 3, 1], id="time indexes up to the bound, inclusive"),
        pytest.param(UNBOUNDED, 35, [2] * 5, id="one byte short of three time indexes"),
    ],
)
def test_a_group_takes_segments_up_to_the_bounds(max_bytes: int, max_index_bytes: int, sizes: list[int]) -> None:
    grouped = bases(TEN, max_bytes=max_bytes, max_index_bytes=max_index_bytes, first_uncleanable_offset=100)
    assert [len(group) for group in grouped] == sizes
    assert [base for group in grouped for base in group] == list(range(0, 100, 10))


def test_offset_indexes_bound_a_group_as_time_indexes_do() -> None:
    wide = [replace(each, index_bytes=24) for each in TEN]
    assert [len(group) for group in bases(wide, max_index_bytes=72, first_uncleanable_offset=100)] == [3, 3, 3, 1]


def test_the_range_check_uses_the_base_of_the_next_segment() -> None:
    far = MAX_RELATIVE_OFFSET
    segments = [segment(0), segment(1), segment(far + 1), segment(far + 2)]
    # the second may reach up to far, which still fits; the third up to far + 1, which does not
    assert bases(segments, first_uncleanable_offset=far + 3) == [[0, 1], [far + 1, far + 2]]
    assert bases(segments[:3], first_uncleanable_offset=far + 2) == [[0, 1], [far + 1]]


@pytest.mark.parametrize(
    ("first_uncleanable_offset", "expected"),
    [(MAX_RELATIVE_OFFSET + 1, [[0, 400_000]]), (MAX_RELATIVE_OFFSET + 2, [[0], [400_000]])],
    ids=["it can just be told from the group's base", "it is one past what an index can hold"],
)
def test_the_range_check_of_the_last_segment_uses_the_first_uncleanable_offset(
    first_uncleanable_offset: int, expected: list[list[int]]
) -> None:
    assert bases([segment(0), segment(400_000)], first_uncleanable_offset=first_uncleanable_offset) == expected


def test_an_empty_segment_is_exempt_from_the_range_check() -> None:
    segments = [segment(0), segment(10, 0), segment(MAX_RELATIVE_OFFSET + 100)]
    assert bases(segments) == [[0, 10], [MAX_RELATIVE_OFFSET + 100]]


def test_a_group_with_an_empty_first_segment_is_checked_from_the_second() -> None:
    # the first segment of a group is never asked, the second is not empty
    segments = [segment(0, 0), segment(MAX_RELATIVE_OFFSET, 10), segment(MAX_RELATIVE_OFFSET + 2, 10)]
    assert bases(segments, first_uncleanable_offset=MAX_RELATIVE_OFFSET + 3) == [
        [0],
        [MAX_RELATIVE_OFFSET, MAX_RELATIVE_OFFSET + 2],
    ]


def test_a_group_is_named_by_its_first_segment_and_as_old_as_its_last() -> None:
    (group,) = group_segments([segment(5, 10, mtime_ns=7), segment(9, 20, mtime_ns=8)], TopicConfig(), 12)
    assert (group.base_offset, group.mtime_ns, group.size_bytes) == (5, 8, 30)
    assert str(group) == "[5, 9] 30 bytes"


@pytest.mark.parametrize(("next_offset", "expected"), [(10 + 2**31, False), (11 + 2**31, True), (10, False)])
def test_a_segment_overflows_when_its_last_offset_needs_more_than_31_bits(next_offset: int, expected: bool) -> None:
    assert overflows(segment(10, next_offset=next_offset)) is expected
