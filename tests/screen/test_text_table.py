"""Amounts as people read them; tables that fit a width: their columns, their rows, and the screen on which they are printed."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from compaction.names import TopicPartition
from compaction.screen.amounts import counted, decimal, duration, elapsed, share_freed, size, with_duration
from compaction.screen.text_table import (
    MOST_ROWS,
    PIPE_WIDTH,
    Column,
    Line,
    Row,
    Screen,
    Style,
    log_table,
    shortened,
    table,
    wrapped,
)

STYLE = Style()
COLUMNS = (Column("log", right=False), Column("bytes"), Column("keys", rank=1), Column("why", right=False, rank=2))
ROWS = (Row(("orders-0", "1.5 MB", "12", "ratio")), Row(("a-0", "9 B", "1,350", "lag"), details=("some more words",)))


def lines(width: int) -> list[str]:
    return [line.text for line in table(COLUMNS, ROWS, Style(width))]


def test_figures_are_right_aligned_and_details_indented() -> None:
    assert lines(40) == [
        "log        bytes   keys  why",
        "orders-0  1.5 MB     12  ratio",
        "a-0          9 B  1,350  lag",
        "    some more words",
    ]


def test_the_least_important_columns_are_left_out_first() -> None:
    assert lines(27)[0] == "log        bytes  why"
    assert lines(20)[0] == "log        bytes"


def test_a_long_name_is_shortened_in_its_middle_and_costs_no_column() -> None:
    rows = [*ROWS, Row(("a-very-long-topic-name-that-has-no-room-12", "1.5 MB", "", ""))]
    found = [line.text for line in table(COLUMNS, rows, Style(50))]
    assert found[0].split() == ["log", "bytes", "keys", "why"]
    assert found[-1].startswith("a-very-long-")
    assert found[-1].endswith("-room-12  1.5 MB")
    assert "…" not in [line.text for line in table(COLUMNS, rows, Style(80))][-1]


@pytest.mark.parametrize("width", range(4, 30))
def test_a_shortened_name_fits_and_has_its_end(width: int) -> None:
    name = "a-very-long-topic-name-12"
    found = shortened(name, width, "…")
    assert len(found) <= width
    assert found == name or (found[0] == "a" and found[-1] == "2" and "…" in found)


def test_wide_characters_take_two_cells() -> None:
    assert shortened("注文注文注文", 8, "…") == "注文…文"
    first, second = (line.text for line in table(COLUMNS[:2], [Row(("注文-0", "1 B"))], Style(40)))
    assert first == "log     bytes"
    assert second == "注文-0    1 B"


def test_sentences_are_broken_between_words_only() -> None:
    path = "/a/path/that/is-longer/than-the-width"
    assert [line.text for line in wrapped(f"see {path} there", Style(12), indent=2, hanging=1)] == [
        "  see",
        f"   {path}",
        "   there",
    ]
    assert [line.text for line in wrapped("one two three", Style(5, wraps=False), indent=2)] == ["  one two three"]
    assert wrapped("", Style(5)) == wrapped("", Style(5, wraps=False)) == []


def rows_of(names: list[tuple[str, int]], rank: Callable[[Sequence[TopicPartition]], Any], style: Style = STYLE) -> list[str]:
    """The lines of a table that has the names of logs only."""
    logs = [TopicPartition(*name) for name in names]
    return [line.text for line in log_table([], logs, rank, lambda name, _: Row([name]), Row(["total"]), style)]


def test_few_logs_have_a_row_each_the_largest_effect_first() -> None:
    effects = {("a", 0): 5, ("a", 1): 1, ("b", 0): 9}
    assert rows_of(list(effects), lambda row: -effects[row[0]]) == ["log", "b-0", "a-0", "a-1", "total"]


def test_many_logs_are_grouped_by_topic() -> None:
    names = [*(("many", partition) for partition in range(MOST_ROWS)), ("few", 7)]
    assert rows_of(names, len) == ["topic (partitions)", "few-7", "many (20)", "total"]


def test_of_many_topics_only_the_first_are_shown_and_the_others_counted() -> None:
    names = [(f"t{number:02}", 0) for number in range(MOST_ROWS + 1)]
    shown, every = (rows_of(names, lambda row: row[0], Style(all_rows=all_rows)) for all_rows in (False, True))
    assert shown[1:-2] == [f"t{number:02}-0" for number in range(MOST_ROWS)]
    assert shown[-2] == "… and 1 more topic, in the report (--all shows every log)"
    assert every[1:-1] == [f"t{number:02}-0" for number in range(MOST_ROWS + 1)]


def test_lines_are_printed_as_they_are_without_colours() -> None:
    stream = io.StringIO()
    Screen(stream).print([Line("[red]one", "red"), Line("")])
    assert stream.getvalue() == "[red]one\n\n"


def test_a_stream_without_a_width_has_tables_of_one_width_and_unbroken_sentences() -> None:
    assert (Screen(io.StringIO()).style.width, Screen(io.StringIO()).style.wraps) == (PIPE_WIDTH, False)
    assert (Screen(io.StringIO(), 60).style.width, Screen(io.StringIO(), 60).style.wraps) == (60, True)


@pytest.mark.parametrize(
    ("shown", "amounts"),
    [
        (size, {
            0: "0 B", 1: "1 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 999_950: "1.0 MB", 4_096_000_000: "4.1 GB",
        }),
        (decimal, {
            0: "0 bytes", 1: "1 byte", 999: "999 bytes", 1000: "1.0 kB", 999_950: "1,000.0 kB", 1_000_000: "1.0 MB",
            25_449_999: "25.4 MB", 10**16: "10.0 PB", 2**63 - 1: "9.2 EB", -2000: "-2,000 bytes",
        }),
        (duration, {
            0: "0 ms", 250: "250 ms", 1000: "1 second", 1250: "1 second 250 ms", 90_000: "1 minute 30 seconds",
            3_600_000: "1 hour", 3_600_001: "1 hour", 36_000_001: "10 hours",
            86_400_000 * 3 + 3_600_000 * 4 + 5: "3 days 4 hours", 86_400_000 * 23 + 3_600_000 * 4: "23 days",
            -60_000: "1 minute",
        }),
        (with_duration, {-1: "-1", 5: "5", 259_200_000: "259200000 (3 days)"}),
        (elapsed, {0: "0.0 s", 59.9: "59.9 s", 59.96: "1 min 0 s", 70: "1 min 10 s", 3599.6: "1 h 0 min", 7500: "2 h 5 min"}),
    ],
)  # fmt: skip
def test_amounts_are_shown_as_people_read_them(shown: Callable[[Any], str], amounts: dict[float, str]) -> None:
    assert {amount: shown(amount) for amount in amounts} == amounts


def test_shares_are_exact_or_said_to_be_rounded() -> None:
    shares = {
        (0, 0): "0.0 %", (1000, 1000): "0.0 %", (1000, 0): "100.0 %", (1000, 235): "76.5 %", (1_000_000, 999_999): "< 0.1 %",
        (1_000_000, 1): "> 99.9 %", (1000, 1001): "-0.1 %",
    }  # fmt: skip
    assert {sizes: share_freed(*sizes) for sizes in shares} == shares


def test_one_thing_is_in_the_singular() -> None:
    assert [counted(2, noun) for noun in ("policy", "key", "directory")] == ["2 policies", "2 keys", "2 directories"]
    numbers = {0: "0 segments", 1: "1 segment", 2: "2 segments", 1350: "1,350 segments"}
    assert {number: counted(number, "segment") for number in numbers} == numbers
