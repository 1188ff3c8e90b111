"""A comparison as text, at the widths of terminals and through a pipe: golden files."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from compaction.policies.comparison import ComparedLog, Comparison, OutcomeStatus, explanation_lines
from compaction.report import LogStatus
from compaction.screen.text_table import Screen, letter
from tests.policies.made import comparison, failed, log, skipped
from tests.screen.golden_text import check_golden, widest

THREE = (
    "cleanup.policy=compact",
    "cleanup.policy=delete,retention.ms=259200000",
    "cleanup.policy=compact+delete,retention.ms=86400000",
)


def with_three_policies(*logs: ComparedLog) -> Comparison:
    """The second policy twice, under the names of a real comparison."""
    more = (replace(each, outcomes=(*each.outcomes, *each.outcomes[1:])) for each in logs)
    return replace(comparison(*more), policies=THREE)


def few() -> Comparison:
    refused = log("no-keys-0", 700, status=OutcomeStatus.REFUSED, reason="12 of 100 records have no key")
    return with_three_policies(log("a-0", 100), refused, skipped("b-0", 30, "ratio"), failed("c-0", "/data/c-0/0.log: broken"))


def many() -> Comparison:
    logs = (log(f"topic-{number // 8:02}-{number % 8}", 10 * number + 5, left=(30 + number % 60, 80)) for number in range(316))
    return with_three_policies(*logs)


def printed(found: Comparison, width: int | None, **options: bool) -> str:
    stream = io.StringIO()
    found.print_on(Screen(stream, width, **options))
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(("name", "found"), [("few", few()), ("many", many())])
def test_a_comparison_on_a_terminal(name: str, found: Comparison, width: int, request: pytest.FixtureRequest) -> None:
    text = printed(found, width)
    check_golden(f"comparison-{name}-{width}", text, request)
    assert widest(text) <= width
    assert len(text.splitlines()) <= 50


def test_a_comparison_through_a_pipe_has_the_same_tables(request: pytest.FixtureRequest) -> None:
    text = printed(few(), None)
    check_golden("comparison-few-pipe", text, request)
    blocks = text.split("\n\n")
    assert [each for each in blocks if each.startswith(("log ", "policy "))] == [
        each for each in printed(few(), 80).split("\n\n") if each.startswith(("log ", "policy "))
    ]
    assert "\x1b" not in text


def test_a_comparison_with_details(request: pytest.FixtureRequest) -> None:
    check_golden("comparison-details-80", printed(few(), 80, details=True), request)


def test_many_policies_have_several_tables() -> None:
    ten = replace(log("a-0", 100), outcomes=log("a-0", 100).outcomes * 5)
    text = printed(replace(comparison(ten), policies=tuple(f"retention.ms={each}" for each in range(10))), 60)
    assert widest(text) <= 60
    heads = [line for line in text.splitlines() if line.startswith("log ")]
    assert [name for line in heads for name in line.split() if len(name) == 1] == list("ABCDEFGHIJ")


def test_a_quiet_comparison_prints_its_last_line_only() -> None:
    last = "dry run, nothing written: 1 log; A 100.0 kB -> 50.0 kB, B 100.0 kB -> 80.0 kB on disk, in 1.2 s without start-up\n"
    assert printed(comparison(log("a-0", 100)), None, only_summary=True) == last


def test_a_refused_log_is_not_counted_as_freed() -> None:
    found = comparison(log("a-0", 100), log("b-0", 300, status=OutcomeStatus.REFUSED))
    compacting, deleting = found.totals()
    assert (compacting.before.bytes, compacting.after.bytes) == (400_000, 350_000)
    assert (deleting.before.bytes, deleting.after.bytes) == (400_000, 320_000)
    assert (found.exit_code, found.refused) == (0, 1)


def test_markup_in_a_name_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    text = printed(comparison(failed("b-0", "[red]broken[/red]")), 80, colours=True, details=True)
    assert "[red]broken[/red]" in text


def test_letters_go_on_after_z() -> None:
    assert [letter(number) for number in (0, 25, 26, 27, 701, 702)] == ["A", "Z", "AA", "AB", "ZZ", "AAA"]


def test_explanations_have_every_condition_with_its_remedy() -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    screen.print(explanation_lines([log("a-0", 1), failed("b-0", "broken")], screen.style))
    assert stream.getvalue().startswith(
        "a-0 in /data\n"
        "  cleanup.policy=compact: would be cleaned: over 0.5\n"
        "    yes   cleanup policy compact includes compact\n"
        "    no    ratio 0.2 > 0.5\n"
        "          becomes cleanable after 3 kB more\n"
    )
    assert stream.getvalue().endswith("b-0 in /data\n  failed: broken\n")


def test_explanations_fit_a_terminal() -> None:
    stream = io.StringIO()
    screen = Screen(stream, 50)
    screen.print(explanation_lines([log("a-0", 1)], screen.style))
    assert widest(stream.getvalue()) <= 50
    assert "\n  cleanup.policy=compact: would be cleaned: over\n    0.5\n" in stream.getvalue()


def test_a_log_that_only_expires_is_not_cleaned() -> None:
    (outcome, expired) = log("a-0", 100).outcomes
    assert (outcome.words, expired.words) == ("cleaned", "expired")
    both = replace(expired, run=replace(expired.run, compacted=True, status=LogStatus.CLEANED))
    assert both.words == "expired and cleaned"
