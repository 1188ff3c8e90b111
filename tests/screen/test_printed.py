"""What runs and comparisons print, at the widths of terminals and through a pipe: golden files."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from compaction.policies.comparison import ComparedLog, Comparison, Explanation, OutcomeStatus
from compaction.report import CHANGED, IN_USE, LogReport, LogStatus, RunReport
from compaction.screen.text_table import Screen, letter
from tests.policies import made
from tests.policies.made import comparison, log
from tests.screen.golden_text import check_golden, widest
from tests.screen.made_reports import cleaned, every_outcome, expired, failed, many_logs, skipped


def shown(report: RunReport | Comparison, width: int | None, **options: bool) -> str:
    stream = io.StringIO()
    report.print_on(Screen(stream, width, **options))
    return stream.getvalue()


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
    return with_three_policies(
        log("a-0", 100), refused, made.skipped("b-0", 30, "ratio"), made.failed("c-0", "/data/c-0/0.log: broken")
    )


def many() -> Comparison:
    logs = (log(f"topic-{number // 8:02}-{number % 8}", 10 * number + 5, left=(30 + number % 60, 80)) for number in range(316))
    return with_three_policies(*logs)


#: by the name of its golden files
RESULTS: dict[str, RunReport | Comparison] = {
    "run-every-outcome": every_outcome(),
    "run-many-logs": many_logs(dry_run=True),
    "comparison-few": few(),
    "comparison-many": many(),
}


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", RESULTS)
def test_a_result_fits_a_terminal(name: str, width: int, request: pytest.FixtureRequest) -> None:
    text = shown(RESULTS[name], width)
    check_golden(f"{name}-{width}", text, request)
    assert widest(text) <= width
    assert len(text.splitlines()) <= 50


@pytest.mark.parametrize(("name", "found"), [("run", every_outcome(dry_run=True)), ("comparison", few())])
def test_a_result_with_details(name: str, found: RunReport | Comparison, request: pytest.FixtureRequest) -> None:
    check_golden(f"{name}-details-80", shown(found, 80, details=True), request)


def test_a_run_through_a_pipe_has_the_same_table(request: pytest.FixtureRequest) -> None:
    text = shown(every_outcome(), None)
    check_golden("run-every-outcome-pipe", text, request)
    table = text.partition("\n\n")[0]
    assert shown(every_outcome(), 80).startswith(f"{table}\n\n")
    assert "\x1b" not in text


def test_all_rows_are_logs() -> None:
    lines = shown(many_logs(), 80, all_rows=True).splitlines()
    assert len([line for line in lines if line.startswith("topic-")]) == 316
    assert lines[0].startswith("log ")


def test_a_quiet_run_prints_its_last_line_only() -> None:
    assert shown(many_logs(), None, only_summary=True) == f"{many_logs().summary()}\n"
    assert shown(many_logs(), None).endswith(f"\n{many_logs().summary()}\n")


def test_a_terminal_with_colours_gets_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = shown(every_outcome(), 80, colours=True)
    assert "\x1b[1;31mbad-1" in coloured
    for code in ("\x1b[1;31m", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[0m"):
        coloured = coloured.replace(code, "")
    assert coloured == shown(every_outcome(), 80)


@pytest.mark.parametrize(
    ("logs", "told"),
    [
        pytest.param((), "0 logs: nothing to do", id="none"),
        pytest.param((cleaned("a", 0, 1, 50),), "1 log: 1 cleaned", id="one"),
        pytest.param((expired("a", 0, 1000, 2),), "1 log: 1 expired", id="an expired log is not a cleaned one"),
        pytest.param(
            (failed("a", 0, "x"), skipped("a", 1, 5, "lag", "lag: x")), "2 logs: 1 failed, 1 skipped (1 lag)", id="causes"
        ),
    ],
)
def test_the_last_line_counts_logs_by_outcome(logs: tuple[LogReport, ...], told: str) -> None:
    assert RunReport("r", 0, False, logs).summary().startswith(f"{told}; ")


def test_bytes_that_remain_as_deleted_files_are_reported_with_what_removes_them() -> None:
    text = shown(RunReport("r", 0, False, (cleaned("a", 0, 4, 50),)), None)
    assert "4.3 kB remain on disk as .deleted files: the next run or a broker's start removes them" in text
    # the option of compact; expire and erase do not have it
    assert "or at once: --release-early\n" in text
    assert "--set file.delete.delay.ms=0\n" in shown(RunReport("r", 0, False, (expired("b", 0, 1000, 1),)), None)
    assert ".deleted" not in shown(RunReport("r", 0, False, (replace(cleaned("a", 0, 4, 50), deleted_bytes=0),)), None)


def test_the_cleaned_range_is_reported_where_it_is_not_all_that_is_on_disk() -> None:
    log = cleaned("a", 0, 4, 50)
    assert "in the cleaned range of 1 log: 4.0 kB -> 2.0 kB\n" in shown(RunReport("r", 0, False, (log,)), None)
    whole = replace(log, disk_bytes_before=log.bytes_before, disk_bytes_after=log.bytes_after)
    assert "cleaned range" not in shown(RunReport("r", 0, False, (whole,)), None)


def test_a_name_or_a_reason_is_printed_without_control_characters_or_markup() -> None:
    log = failed("\x1b[2J\u202e", 0, "\x1b]0;owned\x07 [red]x[/red]\r")
    for colours in (False, True):
        text = shown(RunReport("r", 0, False, (log,)), 80, details=True, colours=colours)
        assert "\x1b]" not in text
        assert "\x1b[2J" not in text
        assert "\r" not in text
        assert "[red]x[/red]" in text


def test_a_stream_that_cannot_encode_an_ellipsis_gets_dots() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    many_logs().print_on(Screen(stream, 60))
    stream.seek(0)
    assert "... and 20 more topics" in stream.read()


def test_logs_that_were_read_beside_a_broker_are_named() -> None:
    logs = [replace(cleaned(f"t{number}", 0, 1, 50), reason=f"dirty ({IN_USE})") for number in range(6)]
    moved = replace(cleaned("moved", 0, 1, 50), reason=f"dirty ({CHANGED})")
    text = shown(RunReport("r", 0, True, (*logs, moved)), None)
    assert "6 logs (in use; figures are a snapshot): t0-0, t1-0, t2-0, t3-0, t4-0, ...\n" in text
    assert "1 log (the log changed while it was read): moved-0\n" in text


def test_a_comparison_through_a_pipe_has_the_same_tables(request: pytest.FixtureRequest) -> None:
    text = shown(few(), None)
    check_golden("comparison-few-pipe", text, request)
    blocks = text.split("\n\n")
    assert [each for each in blocks if each.startswith(("log ", "policy "))] == [
        each for each in shown(few(), 80).split("\n\n") if each.startswith(("log ", "policy "))
    ]
    assert "\x1b" not in text


def test_many_policies_have_several_tables() -> None:
    ten = replace(log("a-0", 100), outcomes=log("a-0", 100).outcomes * 5)
    text = shown(replace(comparison(ten), policies=tuple(f"retention.ms={each}" for each in range(10))), 60)
    assert widest(text) <= 60
    heads = [line for line in text.splitlines() if line.startswith("log ")]
    assert [name for line in heads for name in line.split() if len(name) == 1] == list("ABCDEFGHIJ")


def test_a_refused_log_is_not_counted_as_freed() -> None:
    found = comparison(log("a-0", 100), log("b-0", 300, status=OutcomeStatus.REFUSED))
    compacting, deleting = found.totals()
    assert (compacting.before.bytes, compacting.after.bytes) == (400_000, 350_000)
    assert (deleting.before.bytes, deleting.after.bytes) == (400_000, 320_000)
    assert (found.exit_code, found.refused) == (0, 1)


def test_letters_go_on_after_z() -> None:
    assert [letter(number) for number in (0, 25, 26, 27, 701, 702)] == ["A", "Z", "AA", "AB", "ZZ", "AAA"]


def test_explanations_have_every_condition_with_its_remedy() -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    Explanation([log("a-0", 1), made.failed("b-0", "broken")], 5).print_on(screen)
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
    Explanation([log("a-0", 1)], 5).print_on(screen)
    assert widest(stream.getvalue()) <= 50
    assert "\n  cleanup.policy=compact: would be cleaned: over\n    0.5\n" in stream.getvalue()


def test_a_log_that_only_expires_is_not_cleaned() -> None:
    (outcome, expired) = log("a-0", 100).outcomes
    assert (outcome.words, expired.words) == ("cleaned", "expired")
    both = replace(expired, run=replace(expired.run, compacted=True, status=LogStatus.CLEANED))
    assert both.words == "expired and cleaned"
