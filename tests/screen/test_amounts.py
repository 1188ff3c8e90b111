"""Amounts as people read them."""

from __future__ import annotations

import pytest

from compaction.screen.amounts import counted, decimal, duration, elapsed, share_freed, size, with_duration


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (4_096_000_000, "4.1 GB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1000, "1.0 kB"), (999_950, "1,000.0 kB"), (1_000_000, "1.0 MB"),
        (25_449_999, "25.4 MB"), (10**16, "10.0 PB"), (2**63 - 1, "9.2 EB"), (-2000, "-2,000 bytes"),
    ],
)  # fmt: skip
def test_bytes_in_words(count: int, text: str) -> None:
    assert decimal(count) == text


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (0, 0, "0.0 %"),
        (1000, 1000, "0.0 %"),
        (1000, 0, "100.0 %"),
        (1000, 235, "76.5 %"),
        (1_000_000, 999_999, "< 0.1 %"),
        (1_000_000, 1, "> 99.9 %"),
        (1000, 1001, "-0.1 %"),
    ],
)
def test_shares(before: int, after: int, text: str) -> None:
    assert share_freed(before, after) == text


def test_one_thing_is_in_the_singular() -> None:
    assert [counted(2, noun) for noun in ("policy", "key", "directory")] == ["2 policies", "2 keys", "2 directories"]
    assert [counted(number, "segment") for number in (0, 1, 2, 1350)] == [
        "0 segments",
        "1 segment",
        "2 segments",
        "1,350 segments",
    ]


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 ms"),
        (250, "250 ms"),
        (1000, "1 second"),
        (1250, "1 second 250 ms"),
        (90_000, "1 minute 30 seconds"),
        (3_600_000, "1 hour"),
        (3_600_001, "1 hour"),
        (36_000_001, "10 hours"),
        (86_400_000 * 3 + 3_600_000 * 4 + 5, "3 days 4 hours"),
        (86_400_000 * 23 + 3_600_000 * 4, "23 days"),
        (-60_000, "1 minute"),
    ],
)
def test_durations(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text


def test_configured_durations_have_the_configured_number() -> None:
    assert [with_duration(each) for each in (-1, 5, 259_200_000)] == ["-1", "5", "259200000 (3 days)"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (59.9, "59.9 s"), (59.96, "1 min 0 s"), (70, "1 min 10 s"), (3599.6, "1 h 0 min"), (7500, "2 h 5 min")],
)
def test_elapsed_times(seconds: float, text: str) -> None:
    assert elapsed(seconds) == text
