"""What all pages have in common: in notebooks, in files, and with names that are markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

import compaction
from compaction.certifier.certificate import LogCertificate
from compaction.cli.console import main
from compaction.names import TopicPartition
from compaction.report import LogReport, LogStatus, WaveReport
from compaction.results import PageResult
from compaction.run_report import RunReport
from tests.golden import unpack_sample
from tests.policies.browser import Browser, browser
from tests.policies.made import comparison, log
from tests.policies.test_page import result as over_time

__all__ = ["browser"]

NOW = "2027-01-01T00:00Z"
EVIL = '</script><img src=x onerror="document.title=1"><b class="evil">&amp;'


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PageResult]:
    """A result of each kind that has a page."""
    sample = unpack_sample(tmp_path_factory.mktemp("sample"))
    run = compaction.compact(sample, as_of=NOW, engine="local")
    return {
        "run": run,
        "verification": compaction.verify(in_place=sample, as_of=NOW, engine="local"),
        "count": compaction.count(sample, top=2, engine="local"),
        "comparison": comparison(log("orders-0", 100)),
        "over time": over_time(),
    }


KINDS = ("run", "verification", "count", "comparison", "over time")


@pytest.mark.parametrize("kind", KINDS)
def test_a_notebook_shows_the_charts_apart_from_its_own_page(results: dict[str, PageResult], kind: str) -> None:
    found = re.fullmatch(r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts" [^<>]*></iframe>', results[kind]._repr_html_())
    assert found is not None
    assert unescape(found[1]) == results[kind].to_html()


@pytest.mark.parametrize("kind", KINDS)
def test_ipython_shows_the_text(results: dict[str, PageResult], kind: str) -> None:
    class Printer:
        shown = ""

        def text(self, text: str) -> None:
            self.shown += text

    printer = Printer()
    results[kind]._repr_pretty_(printer, False)
    assert printer.shown == str(results[kind])


def test_a_page_is_written_to_a_file_of_the_caller(results: dict[str, PageResult], tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    assert results["run"].to_html(file) == file.read_text("utf-8")
    with pytest.raises(compaction.CompactionError, match=r"no-such.*cannot be written"):
        results["run"].to_html(tmp_path / "no-such" / "run.html")


def test_compact_and_verify_write_pages(tmp_path: Path) -> None:
    sample, pages = unpack_sample(tmp_path), [tmp_path / "run.html", tmp_path / "verified.html"]
    assert main(["compact", "--log-dir", str(sample), "--topic", "orders", "--as-of", NOW, "--html", str(pages[0])]) == 0
    assert main(["verify", "--in-place", str(sample), "--topic", "orders", "--as-of", NOW, "--html", str(pages[1])]) == 0
    assert all('"topic":"orders"' in page.read_text("utf-8") for page in pages)
    assert '"status":"holds"' in pages[1].read_text("utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_no_address_and_no_placeholder(results: dict[str, PageResult], kind: str) -> None:
    page = results[kind].to_html()
    assert re.findall(r"(?:https?:)?//[\w.]+|\bsrc=|\bhref=|url\(|@import|\bimport\(|fetch\(", page) == []
    assert "default-src 'none'" in page and "<!--" not in page


@pytest.mark.browser
def test_the_page_of_a_run_has_its_figures(browser: Browser, results: dict[str, PageResult]) -> None:
    shown = browser.show(results["run"].to_html(), "document.body.innerText")
    assert (shown.addresses, shown.console) == ((), ())
    assert "66.5 %" in shown.told and "6,558 records removed" in shown.told and "skipped: ratio" in shown.told
    script = "document.querySelector('[data-log=\"0\"]').click(); return document.getElementById('why').innerText"
    first = results["run"].to_dict()["logs"][0]
    assert first["reason"] in browser.show(results["run"].to_html(), script).told


@pytest.mark.browser
def test_the_page_of_a_verification_names_violations(browser: Browser, results: dict[str, PageResult]) -> None:
    assert isinstance(results["verification"], compaction.VerifyReport)
    violated = LogCertificate.violated(TopicPartition("orders", 7), 4711, f"record is missing {EVIL}")
    report = replace(results["verification"], logs=(*results["verification"].logs, violated))
    script = "['.big', '#violations'].map((name) => document.querySelector(name).innerText)"
    shown = browser.show(report.to_html(), script)
    assert shown.console == ()
    worst, violations = shown.told
    assert worst.strip() == "violated"
    assert "orders-7" in violations and "4,711" in violations and f"record is missing {EVIL}" in violations


def run_of(*names: str) -> RunReport:
    """A run of logs with these topics."""
    waves = (WaveReport(1, 2, 3, 0.5), WaveReport(1, 2, 3, 0.5))
    made = tuple(
        LogReport(
            name, 0, f"/{name}", LogStatus.CLEANED, f"because of {name}", 0, 9, compacted=True, disk_bytes_before=1000,
            disk_bytes_after=400, superseded_records=6, settings={name: {"value": name, "source": name}},
        )
        for name in names
    )  # fmt: skip
    return RunReport("run-1", 1_763_456_000_000, False, made, 1.0, waves=waves)


@pytest.mark.browser
def test_names_on_the_page_of_a_run_are_not_markup(browser: Browser) -> None:
    script = """document.querySelector('[data-log="0"]').click();
        return [document.querySelectorAll('.evil, img').length, document.title, document.getElementById('why').innerText]"""
    shown = browser.show(run_of(EVIL, "orders").to_html(), script)
    elements, title, why = shown.told
    assert (elements, title) == (0, "Run, 2 logs")
    assert f"because of {EVIL}" in why
    assert shown.console == ()
