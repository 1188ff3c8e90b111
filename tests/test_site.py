"""The reference is made from the code; the site builds without a warning, and refers to nothing outside of it."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import compaction
from compaction.certifier.certificate import LogCertificate, Status, VerifyReport, Violation
from compaction.cli.parser import Parser
from compaction.commands import compact
from compaction.config.entries import BROKER_ENTRIES, TOPIC_ENTRIES
from compaction.rules.log_to_clean import SkipCause
from tests.golden import unpack_sample
from tests.policies.browser import find_browser
from tests.processes import ROOT, started


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """``conf/site/reference.py``."""
    return load("reference")


def load(name: str) -> ModuleType:
    """A module of ``conf/site/``."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"conf/site/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_option_setting_field_and_code(reference: ModuleType) -> None:
    arguments, options = list(sys.argv), reference.options()
    assert sys.argv == arguments and "usage: kafka-log-compaction compact " in options
    assert {option for action in Parser(compact.OPTIONS)._actions for option in action.option_strings} <= set(
        re.findall(r"--?[\w-]+", options)
    )
    assert set(TOPIC_ENTRIES) | set(BROKER_ENTRIES) <= set(re.findall(r"^\| `([\w.]+)` \|", reference.settings(), re.MULTILINE))
    assert {cause.value for cause in SkipCause} <= set(re.findall(r"^\| `(.+?)` \| \w", reference.reasons(), re.MULTILINE))
    assert reference.metrics_page().count("kafka_log_compaction_") > 10


#: fields whose values have names of settings, options and packages
_NAMED = ("settings", "default_settings", "rules", "options", "tool")


def _names(value: object) -> set[str]:
    """The names of all fields of a document."""
    if isinstance(value, dict):
        return set(value).union(*(_names(each) for name, each in value.items() if name not in _NAMED))
    return {name for each in value for name in _names(each)} if isinstance(value, list | tuple) else set()


def test_each_field_of_a_report_has_a_meaning_on_its_page(reference: ModuleType, tmp_path: Path) -> None:
    logs = unpack_sample(tmp_path, "orders-0", "__cluster_metadata-0")
    results = (
        compaction.compact(logs, dry_run=True),
        compaction.dry_run(logs, policies=["cleanup.policy=compact"], include_active=True),
        compaction.erase(logs, where=["prefix=orders"], include_active=True, dry_run=True),
    )
    names = set().union(*(_names(each.to_dict()) for each in results))
    assert {"kafka_versions", "policies", "erasure"} <= names
    rows = re.findall(r"^\| (.+?) \|(.+)\|$", reference.report_page(), re.MULTILINE)
    described = {name for row in rows if row[1].strip() for name in re.findall(r"`(\w+)`", " ".join(row))}
    assert names - described == set()


def test_each_field_of_a_certificate_has_a_meaning_on_its_page() -> None:
    log = LogCertificate("a", 0, Status.VIOLATED, violation_count=1, violations=(Violation(1, "gone"),))
    document = json.loads(VerifyReport(1, (log,), 1.0).to_json())
    del document["totals"]["missing"]
    page = (ROOT / "docs/verify.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`(\w+)`", "\n".join(line for line in page.splitlines() if line.startswith("| "))))
    assert _names(document) - described - {"schema_version"} == set()


def test_every_address_of_the_package_leads_to_something_that_exists() -> None:
    addresses = re.findall(r'^\w+ = "\$PROJECT_URL(/.*)?"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert len(addresses) >= 5
    paths = [match[1] for each in addresses if (match := re.fullmatch(r"/(?:blob|tree)/main/(.+)", each))]
    assert len(paths) >= 2
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", ["dry-run.svg", pytest.param("spark-run.svg", marks=pytest.mark.slow)])
def test_a_picture_has_what_its_command_prints(name: str) -> None:
    """Otherwise: ``python conf/site/pictures.py``."""
    pictures = load("pictures")
    shown = [words_of(text) for text in (pictures.TERMINALS[name](), (pictures.PICTURES / name).read_text())]
    assert "orders-1" in shown[0]
    assert shown[0] == shown[1]


@pytest.mark.parametrize("name", ["speed-light.svg", "speed-dark.svg"])
def test_a_chart_has_the_figures_of_the_page(name: str) -> None:
    """Otherwise: ``python conf/site/pictures.py``."""
    pictures = load("pictures")
    drawn = pictures.chart(name)
    assert drawn == (pictures.PICTURES / name).read_text()
    assert len(re.findall(r"<text [^>]*>[\d.]+ s</text>", drawn)) == len(pictures.CHARTED)


def test_the_page_of_what_is_supported_is_that_of_the_code() -> None:
    """Otherwise: ``python conf/site/support.py``."""
    support = load("support")
    assert support.page() == support.PAGE.read_text(encoding="utf-8")
    settings = {name for kip in support.KIPS for name in kip.settings}
    assert settings <= set(TOPIC_ENTRIES)
    assert [kip.tests for kip in support.KIPS if kip.tests and not (ROOT / kip.tests).exists()] == []
    assert {kip.number for kip in support.KIPS if kip.state != support.NOT_APPLICABLE and not kip.tests} == set()


def test_the_tested_versions_are_those_of_the_package() -> None:
    tested = load("support").TESTED
    pythons = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert sorted(python for python, *_ in tested) == sorted(pythons)
    constraints = (ROOT / "constraints.txt").read_text()
    (pinned,) = re.findall(r'^pyspark==(\d+\.\d+)\.\d+; python_version >= "3.11"$', constraints, re.MULTILINE)
    assert tested[0][2] == pinned
    install = " ".join((ROOT / "docs/install.md").read_text().split())
    for python, _, spark, _ in tested:
        assert re.search(rf"{re.escape(python)} and (PySpark )?{re.escape(spark)}", install), python


def words_of(picture: str) -> list[str]:
    """The text of an SVG, without times and rates."""
    texts = [html.unescape(text).replace("\xa0", " ") for text in re.findall(r"<text [^>]*>([^<]*)</text>", picture)]
    return re.sub(r"[;,]? in (\d+ (h|min) )*[\d.]+ m?s(, [\d.]+ .B/s)?", "", " ".join(texts)).split()


def test_pictures_are_small_and_load_nothing() -> None:
    pictures = ROOT / "docs/pictures"
    sizes = {path.name: path.stat().st_size for path in pictures.iterdir()}
    assert set(sizes) == {"policies.png", "over-time.png", "count.png", *load("pictures").TERMINALS, *load("pictures").CHARTS}
    assert max(sizes.values()) < 150_000
    assert [path.name for path in pictures.glob("*.svg") if "url(http" in path.read_text()] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], None]) -> Path:
    """The built site."""
    if find_spec("mkdocs") is None:
        missing("mkdocs (`make suites` installs it)")
    place = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", place]
    done = started(build, PYTHONPATH=str(ROOT), NO_MKDOCS_2_WARNING="1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    return place


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_refers_to_nothing_outside(site: Path) -> None:
    pages = {path.name: path.read_text() for path in site.glob("*.html")}
    for document in (ROOT / "docs").glob("*.md"):
        assert f"{document.stem}.html" in pages
    assert {"index.html", "contributing.html", "changelog.html"} <= set(pages)
    assert {"commands.html", "settings.html", "report.html", "metrics.html", "reasons.html"} <= set(pages)
    assert 'id="is-it-safe"' in pages["index.html"]
    assert 'src="pictures/dry-run.svg"' in pages["index.html"]
    assert f"kafka-log-compaction {compaction.__version__}" in pages["install.html"]
    for name, text in pages.items():
        assert not re.findall(r'<(?:script|img|iframe)[^>]+src="https?:|<link[^>]+stylesheet[^>]+https?:', text), name


@pytest.fixture(scope="module")
def page(missing: Callable[[str], None]) -> Iterator[Any]:
    """A page of a browser with a screen of 1280 pixels."""
    path = find_browser()
    if path is None or find_spec("playwright") is None:
        missing("a Chromium, or playwright (`make suites` installs them)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": 1280, "height": 800})
        browser.close()


#: the page's script has wrapped every table, and given every block of code its button
_BUILT = """() => {
  const all = selector => [...document.querySelectorAll(`.md-content ${selector}`)];
  return all("table:not([class])").every(table => table.closest(".md-typeset__scrollwrap"))
    && all("pre > code").every(code => code.parentElement.querySelector(".md-clipboard, .md-code__nav"));
}"""
#: tables whose last columns are out of sight, and blocks of code under the button that copies them
_HIDDEN = """() => {
  const wraps = [...document.querySelectorAll(".md-typeset__scrollwrap")];
  const wide = wraps.filter(each => each.scrollWidth > each.clientWidth + 1);
  const covered = [...document.querySelectorAll(".md-clipboard, .md-code__nav")].filter(button => {
    const code = button.closest("pre, .highlight").querySelector("code");
    const [over, under] = [button.getBoundingClientRect(), code.getBoundingClientRect()];
    return over.width > 0 && under.right > over.left + 1 && under.bottom > over.top && under.top < over.bottom;
  });
  const buttons = document.querySelectorAll(".md-clipboard, .md-code__nav").length;
  return [wide.map(each => each.innerText.slice(0, 60)), covered.length, buttons];
}"""


@pytest.mark.browser
def test_every_column_is_in_sight_and_no_code_lies_under_a_button(site: Path, page: Any) -> None:
    buttons = 0
    for file in sorted(site.glob("*.html")):
        page.goto(file.as_uri())
        page.wait_for_function(_BUILT)
        wide, covered, found = page.evaluate(_HIDDEN)
        assert (wide, covered) == ([], 0), file.name
        buttons += found
    assert buttons > 20


@pytest.mark.browser
def test_the_search_works_on_pages_that_are_opened_as_files_and_requests_nothing_else(site: Path, page: Any) -> None:
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.locator(".md-search__input").press_sequentially("tombstone")
    page.wait_for_selector(".md-search-result__link")
    assert page.locator(".md-search-result__link").first.get_attribute("href").startswith(site.as_uri())
    assert [address for address in addresses if not address.startswith("file:")] == []
