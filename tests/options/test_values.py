"""Times, durations, sizes and shares are read as people write them; a missing or mistaken unit is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compaction.options.values import iso_time_ms, milliseconds, read_duration, read_share, read_size

TIME_MS = 1_795_312_800_000


def duration(value: str | int) -> int | None:
    return read_duration("--x", value)


def size(value: str | int) -> int | None:
    return read_size("--x", value)


def share(value: str) -> float | None:
    return read_share("--x", value)


@pytest.mark.parametrize(
    ("read", "values"),
    [
        (iso_time_ms, {
            "2026-11-22T02:00Z": TIME_MS, "2026-11-22 02:00:00z": TIME_MS, "2026-11-22T03:30:00+01:30": TIME_MS,
            "2026-11-21T21:00-0500": TIME_MS, "2026-11-22T02:00:00.123456+00:00": TIME_MS + 123,
            "2000-01-01T00:00Z": 946_684_800_000,
        }),
        (milliseconds, {"946684800000": 946_684_800_000}),
        (duration, {"2h": 7_200_000, "1h30m": 5_400_000, 1000: 1000, None: None}),
        (size, {"500GiB": 500 << 30, "500B": 500, "1048576": 1 << 20, 4096: 4096, None: None}),
        (share, {"10%": 0.1, " 0.5 %": 0.005, "100%": 1.0, None: None}),
    ],
)  # fmt: skip
def test_values_are_read(read: Callable[[Any], object], values: dict[Any, object]) -> None:
    assert {value: read(value) for value in values} == values


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (iso_time_ms, "yesterday", "is not a time such as 2026-11-22T02:00Z"),
        (iso_time_ms, "2026-02-30", "is not a valid time"),
        (iso_time_ms, "1999-12-31", "is a time before the year 2000"),
        (iso_time_ms, "2026-11-22T02:00", "has no offset from UTC: append Z"),
        (iso_time_ms, "2026-11-22T02:00+5", "is not a time such as 2026-11-22T02:00Z"),
        (iso_time_ms, "2026-11-22+05", "is not a time such as 2026-11-22T02:00Z"),
        (iso_time_ms, "2026-02-30T02:00Z", "is not a valid time"),
        (iso_time_ms, "1999-12-31T23:59:59Z", "is a time before the year 2000"),
        (milliseconds, "1795312800", "before the year 2000"),
        (milliseconds, "946684799999", "before the year 2000"),
        (milliseconds, "1795312800000000", "after the year 9999"),
        (milliseconds, "-1", "is not a time in milliseconds"),
        (milliseconds, "1e12", "is not a time in milliseconds"),
        (duration, "soon", "--x: 'soon' is not a time"),
        (duration, 0, "--x: '0' is not a time"),
        (size, "5G", "--x: '5G' is ambiguous"),
        (size, "500", "--x: '500' would be 500 bytes"),
        (size, "-1", "--x: '-1' is not a size"),
        (share, "10", "--x: '10' is not a share in per cent"),
        (share, "101%", "--x: '101%' is not a share in per cent"),
    ],
)
def test_a_value_is_refused(read: Callable[[Any], object], value: object, message: str) -> None:
    # a usage error, or an error of a reader for the parser
    with pytest.raises(Exception, match=message):
        read(value)


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
