"""Tables that fit a width."""

from __future__ import annotations

import pytest

from compaction.screen.text_table import Column, Row, Style, shortened, table, wrapped

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
