"""What is printed: amounts, tables that fit a width, the progress of a run, and golden files of the results of runs and
comparisons, at the widths of terminals and through a pipe."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from compaction.names import TopicPartition
from compaction.policies.comparison import ComparedLog, Comparison, Explanation, OutcomeStatus
from compaction.report import CHANGED, IN_USE, LogStatus, RunReport
from compaction.screen.amounts import counted, decimal, duration, elapsed, share_freed, size, with_duration
from compaction.screen.progress import LINE_INTERVAL_S, Progress, StatusLine
from compaction.screen.text_table import (
    MOST_ROWS,
    PIPE_WIDTH,
    Column,
    Line,
    Row,
    Screen,
    Style,
    letter,
    log_table,
    shortened,
    table,
    wrapped,
)
from tests.policies import made
from tests.policies.made import comparison, log
from tests.screen.golden_text import check_golden, widest
from tests.screen.made_reports import cleaned, every_outcome, failed, many_logs
from tests.waiting import wait_until

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


def tables_of(text: str) -> list[str]:
    return [block for block in text.split("\n\n") if block.startswith(("log ", "policy "))]


@pytest.mark.parametrize("name", ["run-every-outcome", "comparison-few"])
def test_a_result_through_a_pipe_has_the_same_tables(name: str, request: pytest.FixtureRequest) -> None:
    text = shown(RESULTS[name], None)
    check_golden(f"{name}-pipe", text, request)
    assert tables_of(text) == tables_of(shown(RESULTS[name], 80)) != []
    assert "\x1b" not in text


def test_all_rows_are_logs() -> None:
    lines = shown(many_logs(), 80, all_rows=True).splitlines()
    assert len([line for line in lines if line.startswith("topic-")]) == 316
    assert lines[0].startswith("log ")


def test_a_terminal_with_colours_gets_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = shown(every_outcome(), 80, colours=True)
    assert "\x1b[1;31mbad-1" in coloured
    for code in ("\x1b[1;31m", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[0m"):
        coloured = coloured.replace(code, "")
    assert coloured == shown(every_outcome(), 80)


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


def test_many_policies_have_several_tables() -> None:
    ten = replace(log("a-0", 100), outcomes=log("a-0", 100).outcomes * 5)
    text = shown(replace(comparison(ten), policies=tuple(f"retention.ms={each}" for each in range(10))), 60)
    assert widest(text) <= 60
    heads = [line for line in text.splitlines() if line.startswith("log ")]
    assert [name for line in heads for name in line.split() if len(name) == 1] == list("ABCDEFGHIJ")


def test_letters_go_on_after_z() -> None:
    assert [letter(number) for number in (0, 25, 26, 27, 701, 702)] == ["A", "Z", "AA", "AB", "ZZ", "AAA"]


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


CLEAR = "\r\x1b[2K"
MB = 1_000_000


class Clock:
    """Seconds that pass when a test says so."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("total", "steps", "lines"),
    [
        pytest.param(
            1000 * MB, [(LINE_INTERVAL_S / 2, 100 * MB)] * 8,
            [
                "copy: 200.0 MB of 1.0 GB (20%), 20.0 MB/s, 40.0 s left",
                "copy: 400.0 MB of 1.0 GB (40%), 20.0 MB/s, 30.0 s left",
                "copy: 600.0 MB of 1.0 GB (60%), 20.0 MB/s, 20.0 s left",
                "copy: 800.0 MB of 1.0 GB (80%), 20.0 MB/s, 10.0 s left",
                "copy: 1.0 GB in 40.0 s, 25.0 MB/s",
            ],
            id="a line per interval",
        ),
        pytest.param(
            MB, [(LINE_INTERVAL_S, 0)], ["copy: 0 B of 1.0 MB (0%), 0 B/s", "copy: 1.0 MB in 10.0 s, 100.0 kB/s"],
            id="nothing done",
        ),
        pytest.param(0, [(2 * LINE_INTERVAL_S, 0)], ["copy: 0 B in 20.0 s, 0 B/s"], id="an empty pass"),
        pytest.param(
            10 * MB, [(LINE_INTERVAL_S, 9 * MB)] * 2,
            ["copy: 9.0 MB of 10.0 MB (90%), 900.0 kB/s, 1.1 s left", "copy: 10.0 MB in 20.0 s, 500.0 kB/s"],
            id="more than the total",
        ),
    ],
)  # fmt: skip
def test_a_pass_prints_lines(clock: Clock, total: int, steps: list[tuple[float, int]], lines: list[str]) -> None:
    """``steps`` are seconds that pass, and the bytes that are done then."""
    stream = io.StringIO()
    with Progress(partial(print, file=stream), clock) as progress:
        progress.start("copy", total)
        for seconds, done_bytes in steps:
            clock.now_s += seconds
            progress.advance(done_bytes)
        progress.done("copy")
    assert stream.getvalue().splitlines() == lines


def test_bytes_between_passes_are_ignored(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress(partial(print, file=stream), clock) as progress:
        progress.advance(MB)
        progress.start("offset map", MB)
        progress.done("offset map")
        progress.advance(MB)
    assert len(stream.getvalue().splitlines()) == 1


def test_ending_a_pass_that_is_not_running_is_an_error(clock: Clock) -> None:
    with Progress(partial(print, file=io.StringIO()), clock) as progress, pytest.raises(KeyError, match="copy"):
        progress.done("copy")


def test_a_terminal_gets_a_bar_with_bytes_and_rate(clock: Clock) -> None:
    lines, terminal = io.StringIO(), io.StringIO()
    with Progress(partial(print, file=lines), clock, StatusLine(terminal, lambda: 120, clock)) as progress:
        progress.start("offset map", 100 * MB)
        clock.now_s += 2
        progress.advance(50 * MB)
        wait_until(lambda: "50%" in terminal.getvalue(), 20)
        progress.done("offset map")
    assert "\r\x1b[2Koffset map  ────" in terminal.getvalue()
    assert "━━━━━━━━━━━━────────────   50% of 100.0 MB, 25.0 MB/s, 2.0 s left" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")
    assert lines.getvalue() == "offset map: 100.0 MB in 2.0 s, 50.0 MB/s\n"


def test_many_threads_may_advance_one_pass(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress(partial(print, file=stream), clock) as progress:
        progress.start("copy", 8000 * MB)

        def advance_often() -> None:
            for _ in range(500):
                progress.advance(MB)

        threads = [threading.Thread(target=advance_often) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        clock.now_s += LINE_INTERVAL_S
        progress.advance(0)
    assert stream.getvalue().startswith("copy: 4.0 GB of 8.0 GB (50%)")


def test_a_step_is_shown_at_once_and_with_its_time_when_it_lasts() -> None:
    stream, clock = io.StringIO(), Clock()
    status = StatusLine(stream, lambda: 80, clock)
    status.step("reading 3 logs")
    assert stream.getvalue() == f"{CLEAR}reading 3 logs ..."
    clock.now_s += 62
    wait_until(lambda: "1 min 2 s" in stream.getvalue(), 20)
    status.clear()
    assert stream.getvalue().endswith(f"{CLEAR}reading 3 logs ...  1 min 2 s{CLEAR}")


def test_each_line_begins_with_the_prefix() -> None:
    stream = io.StringIO()
    status = StatusLine(stream, lambda: 30)
    status.prefix = "wave 2 of about 5: "
    status.step("cleaning 3 logs")
    assert stream.getvalue() == f"{CLEAR}wave 2 of about 5: cleaning 3"


def test_other_output_is_printed_without_the_line_which_then_returns() -> None:
    stream = io.StringIO()
    status = StatusLine(stream, lambda: 80, Clock())
    status.show(lambda: "working")
    with status.paused():
        stream.write("a line\n")
    status.clear()
    assert stream.getvalue() == f"{CLEAR}working{CLEAR}a line\n{CLEAR}working{CLEAR}"


def test_the_line_is_cut_at_the_width_of_the_terminal() -> None:
    stream = io.StringIO()
    StatusLine(stream, lambda: 11, Clock()).show(lambda: "0123456789abcdef")
    assert stream.getvalue() == f"{CLEAR}0123456789"


def test_a_terminal_that_was_closed_ends_no_run() -> None:
    stream = io.StringIO()
    status = StatusLine(stream, lambda: 80, Clock())
    status.show(lambda: "working")
    stream.close()
    status.step("next")
    status.clear()
    assert not [thread for thread in threading.enumerate() if thread.name == "status line" and not thread.daemon]
