"""A comparison adds up, and reads well as JSON and as text."""

from __future__ import annotations

import io
import json

import pytest

from compaction.compare.count import AGE_BOUNDS_MS
from compaction.compare.figures import Comparison, Distribution, LogTotals, OutcomeStatus
from compaction.compare.html_page import age_labels
from compaction.compare.json_document import explanations_to_json, to_json
from compaction.compare.terminal import freed, print_comparison, print_explanations
from compaction.report import RunStatus
from tests.compare.made import AS_OF_MS, POLICIES, comparison, failed, log


class Terminal(io.StringIO):
    """A stream that says that it is one."""

    def isatty(self) -> bool:
        return True


def told(found: Comparison, stream: io.StringIO) -> str:
    print_comparison(found, stream)
    return stream.getvalue()


def test_totals_are_sums_of_the_logs_with_figures() -> None:
    found = comparison(log("a-0", 100), log("b-0", 300, left=(10, 100), expired=0), failed("c-0", "broken"))
    compacted, deleted = found.totals()
    assert compacted.before == deleted.before == LogTotals(400_000, 18, 4000, 320_000, 400, 80)
    assert (compacted.after.bytes, deleted.after.bytes) == (50_000 + 30_000, 80_000 + 300_000)
    assert deleted.expired.bytes == 20_000
    assert sum(compacted.gone.by_age) == 500 + 2700
    assert compacted.statuses == {"cleaned": 2, "skipped": 0, "refused": 0, "policy_unknown": 0, "failed": 0}


def test_an_empty_comparison_has_totals_too() -> None:
    assert [totals.before for totals in comparison().totals()] == [LogTotals(), LogTotals()]
    assert comparison().status is RunStatus.NOTHING_TO_DO


@pytest.mark.parametrize(
    ("logs", "status", "code"),
    [
        ((log("a-0", 1),), RunStatus.DONE, 0),
        ((log("a-0", 1, status=OutcomeStatus.REFUSED),), RunStatus.DONE, 0),
        ((log("a-0", 1, status=OutcomeStatus.FAILED),), RunStatus.FAILED, 1),
        ((log("a-0", 1), failed("b-0", "broken")), RunStatus.FAILED, 1),
    ],
)
def test_one_failure_makes_the_exit_code(logs: tuple[object, ...], status: RunStatus, code: int) -> None:
    found = comparison(*logs)  # type: ignore[arg-type]
    assert (found.status, found.exit_code) == (status, code)


def test_spreads_add_up_and_nothing_adds_nothing() -> None:
    one = Distribution((1, 2), (3, 4), (5,))
    assert one + Distribution() == Distribution() + one == one
    assert one + one == Distribution((2, 4), (6, 8), (10,))


def test_the_document_has_every_figure() -> None:
    document = json.loads(to_json(comparison(log("a-b-7", 100), failed("c-0", "broken"))))
    assert (document["schema_version"], document["dry_run"], document["status"]) == (1, True, "failed")
    assert (document["as_of_ms"], document["places"], len(document["age_bounds_ms"])) == (AS_OF_MS, 50, 7)
    assert [policy["name"] for policy in document["policies"]] == list(POLICIES)
    assert document["policies"][0]["logs"]["cleaned"] == 1
    first, second = document["logs"]
    assert (first["topic"], first["partition"], first["before"]["bytes"]) == ("a-b", 7, 100_000)
    assert first["policies"][0]["after"]["records"] == 500
    assert first["policies"][0]["run"]["status"] == "cleaned"
    assert first["policies"][0]["broker_rounds"] == 2
    assert first["keys"]["repetition"][2] == {"at_least": 5, "at_most": 8, "keys": 100, "records": 500}
    assert (second["error"], second["policies"]) == ("broken", [])


def test_plain_text_has_a_line_a_policy_and_the_sums() -> None:
    text = told(comparison(log("a-0", 100), failed("b-0", "broken")), io.StringIO())
    assert "a-0: 100.0 kB in 9 segments, 1000 records, 100 tombstones, 300 keys\n" in text
    assert "  cleanup.policy=compact: cleaned, 50.0 kB in 4 segments" in text
    assert "50.0 % freed, 2 broker rounds\n    over 0.5\n" in text
    assert "b-0\n    failed: broken\n" in text
    assert "cleanup.policy=compact: 100.0 kB -> 50.0 kB, 50.0 % freed (1 cleaned)\n" in text
    assert text.endswith("2 logs, 1 failed, nothing written, in 1.2 s\n")
    assert "\x1b" not in text


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = told(comparison(log("a-0", 100, status=OutcomeStatus.REFUSED), failed("b-0", "[red]broken[/red]")), Terminal())
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
    document = json.loads(explanations_to_json([log("a-0", 1)], 5))
    assert (document["as_of_ms"], document["logs"][0]["policies"][0]["status"]) == (5, "cleaned")
    assert len(document["logs"][0]["policies"][0]["why"]) == 2


def test_nothing_is_freed_of_nothing() -> None:
    assert freed(LogTotals(), LogTotals()) == "nothing"
    assert freed(LogTotals(1000), LogTotals(1001)) == "-0.1 %"


def test_ages_have_names() -> None:
    assert age_labels(AGE_BOUNDS_MS) == [
        "in the future", "up to 1 h", "1 h to 1 d", "1 d to 7 d", "7 d to 30 d", "30 d to 90 d", "90 d to 1 y",
        "1 y and older", "no time",
    ]  # fmt: skip
