"""Which rows a table of logs has."""

from __future__ import annotations

from compaction.screen.text_table import MOST_ROWS, top_rows


def test_few_logs_have_a_row_each_the_largest_effect_first() -> None:
    found = top_rows([("a", 0), ("a", 1), ("b", 0)], lambda row: -[5, 1, 9][row[0]], "…", all_rows=False)
    assert [row.name for row in found.rows] == ["b-0", "a-0", "a-1"]
    assert (found.title, found.hidden) == ("log", "")


def test_many_logs_are_grouped_by_topic() -> None:
    names = [("few", 7), *(("many", partition) for partition in range(MOST_ROWS))]
    found = top_rows(names, len, "…", all_rows=False)
    assert [(row.name, len(row.logs)) for row in found.rows] == [("few-7", 1), ("many (20)", 20)]
    assert found.hidden == ""


def test_of_many_topics_only_the_first_are_shown_and_the_others_counted() -> None:
    names = [(f"t{number}", 0) for number in range(MOST_ROWS + 1)]
    found = top_rows(names, lambda row: row[0], "…", all_rows=False)
    assert len(found.rows) == MOST_ROWS
    assert found.hidden == "… and 1 more topic, in the report (--all shows every log)"
    assert len(top_rows(names, lambda row: row[0], "…", all_rows=True).rows) == MOST_ROWS + 1
