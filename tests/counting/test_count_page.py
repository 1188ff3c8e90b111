"""The page of ``count --bytes``, opened from disk in a real browser; its data."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import compaction
from compaction.counting.count_logs import LogCount
from compaction.counting.count_report import MOST_TOPICS, CountReport
from compaction.names import LogLocation, TopicPartition
from tests.golden import unpack_sample
from tests.policies.browser import DARK, Browser

NOW = "2026-11-26T00:00Z"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> CountReport:
    sample = unpack_sample(tmp_path_factory.mktemp("sample"))
    return compaction.count(sample, stored=True, group_by=r"regex:^(\w+)-", top=5, as_of=NOW, engine="local")


@pytest.fixture(scope="module")
def page(report: CountReport) -> str:
    return report.to_html()


def test_it_has_the_figures_of_the_result(report: CountReport) -> None:
    shown, topics = report.page_document(), report.to_dict()["topics"]
    total, by_name = shown["total"], {topic["topic"]: topic for topic in shown["topics"]}
    assert by_name.keys() == {topic["topic"] for topic in topics}
    for field in ("records", "keys", "tombstones", "keyless", "bytes"):
        assert total[field] == sum(topic[field] for topic in topics)
    file_bytes = total["usage"]["file_bytes"]
    assert file_bytes == sum(topic["usage"]["file_bytes"] for topic in topics)
    assert file_bytes == sum(row["stored_bytes"] for row in total["usage"]["states"])
    assert file_bytes == sum(total["usage"]["components"].values())
    for topic in topics:
        assert_has(by_name[topic["topic"]], topic)


def assert_has(shown: Any, reported: Any) -> None:
    """The page has the objects of the report, and names beside them."""
    if isinstance(reported, dict):
        assert shown.keys() - {"name"} == reported.keys()
        for field in reported:
            assert_has(shown[field], reported[field])
    elif isinstance(reported, list):
        for each, other in zip(shown, reported, strict=True):
            assert_has(each, other)
    else:
        assert shown == reported


def test_logs_that_cannot_be_read_are_named(report: CountReport) -> None:
    broken = LogCount(LogLocation(TopicPartition("broken", 0), "/kafka", "/kafka/broken-0"), error="</script> is no log")
    plan = report.plan._replace(logs=[*report.plan.logs, broken])
    assert replace(report, plan=plan).page_document()["notes"] == ["broken-0: </script> is no log"]
    assert replace(report, plan=plan).to_html().count("</script>") == 2


def test_a_page_of_very_many_topics_remains_small(report: CountReport) -> None:
    topic = report.plan.topics[0]
    many = [replace(topic, topic=f"topic-{number:04}") for number in range(1000)]
    large = replace(report, plan=report.plan._replace(topics=many))
    assert len(large.page_document()["topics"]) == MOST_TOPICS
    assert large.page_document()["total"]["topics"] == 1000
    assert "The 200 largest topics can be chosen" in large.page_document()["about"]
    assert len(large.to_html()) < 5_000_000


@pytest.mark.browser
@pytest.mark.parametrize(("width", "flags"), [(390, ()), (390, (DARK,)), (1280, ()), (1280, (DARK,))])
def test_it_fits_the_width_and_has_contrast(browser: Browser, page: str, width: int, flags: tuple[str, ...]) -> None:
    script = """
      for (const node of document.querySelectorAll('details')) node.open = true;
      const wide = document.documentElement.scrollWidth - window.innerWidth;
      const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
      const bright = (colour) => (([red, green, blue]) => (299 * red + 587 * green + 114 * blue) / 1000)(parts(colour));
      const ground = bright(getComputedStyle(document.querySelector('.grid > section')).backgroundColor);
      const text = [...document.querySelectorAll('svg text')].map((node) => bright(getComputedStyle(node).fill));
      return [wide, Math.min(...text.map((each) => Math.abs(each - ground)))];
    """
    shown = browser.show(page, script, *flags, size=(width, 900))
    overflow, contrast = shown.told
    assert overflow <= 0
    assert contrast > 90
    assert (shown.addresses, shown.console) == ((), ())


@pytest.mark.browser
def test_a_topic_can_be_chosen_and_its_charts_have_words_and_tables(browser: Browser, page: str) -> None:
    script = """
      const box = document.getElementById('shown');
      box.value = String([...box.options].findIndex((option) => option.text === 'orders'));
      box.dispatchEvent(new Event('change'));
      return [[...document.querySelectorAll('h2')].map((node) => node.textContent),
        [...document.querySelectorAll('svg')].map((node) => node.getAttribute('aria-label')),
        [...document.querySelectorAll('#blocks table')].map((node) => node.rows.length),
        document.querySelector('.big').textContent];
    """
    headings, labels, rows, size = browser.show(page, script).told
    shown = ["States and ages", "Sizes of values", "Codecs", "Groups of keys", "Headers", "Producers", "Largest keys"]
    assert headings == ["Components", *shown, "Logs"]
    assert labels[0].startswith("orders: keys: 54.0 kB, 20.9 %; values: ")
    assert len(labels) == len(shown) + 1 and all("%" in label for label in labels)
    assert rows == [4, 4, 6, 2, 3, 11, 6]
    assert size == "258 kB .log files"


@pytest.mark.browser
@pytest.mark.parametrize(("topics", "others"), [(17, "and 5 more in the table"), (MOST_TOPICS + 8, "and 8 more")])
def test_topics_that_have_no_bar_or_no_row_are_counted(browser: Browser, report: CountReport, topics: int, others: str) -> None:
    """Not only twelve of seventeen."""
    topic = report.plan.topics[0]
    many = report.plan._replace(topics=[replace(topic, topic=f"topic-{number:03}") for number in range(topics)])
    script = "[...document.querySelectorAll('h2')].find((node) => node.textContent === 'Topics').parentElement.innerText"
    shown = browser.show(replace(report, plan=many).to_html(), script).told
    assert re.search(rf"topic-011\s.*{others}", shown, re.DOTALL)
    assert "topic-012" not in shown


@pytest.mark.browser
def test_all_topics_have_groups_headers_producers_and_keys_too(browser: Browser, page: str, report: CountReport) -> None:
    script = """
      const cells = (row) => [...row.cells].map((cell) => cell.textContent);
      return [...document.querySelectorAll('#blocks section')].filter((node) => node.querySelector('table')).map((node) =>
        [node.querySelector('h2').textContent, [...node.querySelectorAll('tbody tr')].map(cells)]);
    """
    tables = dict(browser.show(page, script).told)
    assert {"Topics", "Groups of keys", "Headers", "Producers", "Largest keys"} <= tables.keys()
    orders = next(topic for topic in report.to_dict()["topics"] if topic["topic"] == "orders")["usage"]
    (group,) = orders["groups"]["largest"]
    whole = report.page_document()["total"]["usage"]["file_bytes"]
    figures = [f"{group[field]:,}" for field in ("records", "bytes", "stored_bytes")]
    assert ["orders: orders", *figures, f"{100 * group['stored_bytes'] / whole:.1f} %"] in tables["Groups of keys"]


@pytest.mark.browser
def test_a_count_without_bytes_has_a_page_too(browser: Browser, tmp_path: Path) -> None:
    report = compaction.count(unpack_sample(tmp_path), top=3, engine="local")
    shown = browser.show(report.to_html(), "document.body.innerText")
    assert shown.console == ()
    assert "Records and keys" in shown.told and "of keys and values" in shown.told and "Largest keys" in shown.told
