"""Times are read as people write them, and mistaken units are refused."""

from __future__ import annotations

import pytest

from compaction.options.values import iso_time_ms, milliseconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-22T02:00Z", 1_795_312_800_000),
        ("2026-11-22 02:00:00z", 1_795_312_800_000),
        ("2026-11-22T03:30:00+01:30", 1_795_312_800_000),
        ("2026-11-21T21:00-0500", 1_795_312_800_000),
        ("2026-11-22T02:00:00.123456+00:00", 1_795_312_800_123),
        ("2000-01-01T00:00Z", 946_684_800_000),
    ],
)
def test_a_time_has_an_offset_from_utc(text: str, expected: int) -> None:
    assert iso_time_ms(text) == milliseconds(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("2026-11-24", "2026-11-24T00:00Z"),
        ("2027-01-01", "2027-01-01T00:00Z"),
        ("2026-11-22T07:00+05", "2026-11-22T07:00+05:00"),
        ("2026-11-22 07:00:00.5-11", "2026-11-22 07:00:00.5-11:00"),
    ],
)
def test_a_date_is_its_midnight_in_utc_and_an_offset_may_be_of_hours_and_both_are_said(
    text: str, full: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert iso_time_ms(text) == iso_time_ms(full)
    assert [record.getMessage() for record in caplog.records] == [f"the time {text} is read as {full}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yesterday", "is not a time such as 2026-11-22T02:00Z"),
        ("2026-02-30", "is not a valid time"),
        ("1999-12-31", "is a time before the year 2000"),
        ("2026-11-22T02:00", "has no offset from UTC: append Z"),
        ("2026-11-22T02:00+5", "is not a time such as 2026-11-22T02:00Z"),
        ("2026-11-22+05", "is not a time such as 2026-11-22T02:00Z"),
        ("2026-02-30T02:00Z", "is not a valid time"),
        ("1999-12-31T23:59:59Z", "is a time before the year 2000"),
    ],
)
def test_any_other_time_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        iso_time_ms(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1795312800", "before the year 2000"),
        ("946684799999", "before the year 2000"),
        ("1795312800000000", "after the year 9999"),
        ("-1", "is not a time in milliseconds"),
        ("1e12", "is not a time in milliseconds"),
    ],
)
def test_seconds_and_microseconds_are_not_taken_for_milliseconds(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        milliseconds(text)
