"""A comparison as text: a table on a terminal, plain lines otherwise."""

from __future__ import annotations

import io

import pytest

from compaction.compare.figures import Comparison, LogTotals, OutcomeStatus
from compaction.compare.terminal import freed, print_comparison, print_explanations
from tests.compare.made import comparison, failed, log


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def printed(found: Comparison, stream: io.StringIO) -> str:
    print_comparison(found, stream)
    return stream.getvalue()


def test_plain_text_has_lines_per_policy_and_the_totals() -> None:
    text = printed(comparison(log("a-0", 100), failed("b-0", "broken")), io.StringIO())
    assert "a-0: 100.0 kB in 9 segments, 1000 records, 100 tombstones, 300 keys\n" in text
    assert "  cleanup.policy=compact: cleaned, 50.0 kB in 4 segments" in text
    assert "50.0 % freed, 2 broker rounds\n    over 0.5\n" in text
    assert "b-0\n    failed: broken\n" in text
    assert "cleanup.policy=compact: 100.0 kB -> 50.0 kB, 50.0 % freed (1 cleaned)\n" in text
    assert text.endswith("2 logs, 1 failed, nothing written, in 1.2 s\n")
    assert "\x1b" not in text


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = printed(comparison(log("a-0", 100, status=OutcomeStatus.REFUSED), failed("b-0", "[red]broken[/red]")), Terminal())
    assert "┃" in text
    assert "refused" in text
    assert "[red]broken[/red]" in text


def test_explanations_have_every_condition_with_its_remedy() -> None:
    stream = io.StringIO()
    print_explanations([log("a-0", 1), failed("b-0", "broken")], stream)
    assert stream.getvalue().startswith(
        "a-0 in /data\n"
        "  cleanup.policy=compact: cleaned: over 0.5\n"
        "    yes   cleanup policy compact includes compact\n"
        "    no    ratio 0.2 > 0.5\n"
        "          becomes cleanable after 3 kB more\n"
    )
    assert stream.getvalue().endswith("b-0 in /data\n  failed: broken\n")


def test_a_log_without_bytes_frees_nothing() -> None:
    assert freed(LogTotals(), LogTotals()) == "nothing"
    assert freed(LogTotals(1000), LogTotals(1001)) == "-0.1 %"
