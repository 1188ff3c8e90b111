"""Pages, opened from disk in a real browser: what they show, how they react, and that they need nothing but themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import escape, unescape
from pathlib import Path

import pytest

import compaction
from compaction.certifier.certificate import LogCertificate
from compaction.cli.console import main
from compaction.names import TopicPartition
from compaction.policies.comparison import MOST_EXPLAINED, Comparison, Distribution, KeyFigures, OutcomeStatus, RepetitionRange
from compaction.policies.result import MOST_VIEWS, Effect, Event, Known, OverTime, Sample, SimulatedLog
from compaction.printable import printable
from compaction.report import LogReport, LogStatus, RunReport, WaveReport
from compaction.results import PageResult
from tests.golden import unpack_sample
from tests.policies.browser import DARK, OVERLAPPING, Browser, browser
from tests.policies.made import POLICIES, comparison, failed, log

__all__ = ["browser"]

CHARTS = ("bytes", "records", "tombstones", "keys", "ages-0", "ages-1", "places-0", "places-1", "rounds")


def several() -> Comparison:
    return comparison(
        log("orders-2", 100, left=(50, 80)),
        log("orders-10", 400, left=(90, 100), expired=0),
        log("payments-0", 200, left=(10, 60), status=OutcomeStatus.REFUSED),
        failed("broken-0", "segment is damaged"),
    )


PAGE = several().to_html()
PICTURE = "new Image().src = 'http://example.invalid/x.png'; return null"


@pytest.mark.browser
def test_its_content_policy_forbids_requests(browser: Browser) -> None:
    without_policy = re.sub(r"<meta http-equiv[^>]*>", "", PAGE)
    assert browser.show(without_policy, PICTURE).addresses == ("http://example.invalid/x.png",)
    shown = browser.show(PAGE, PICTURE)
    assert shown.addresses == ()
    assert "Content Security Policy" in shown.console[0]


@pytest.mark.browser
def test_the_cards_show_the_totals(browser: Browser) -> None:
    cards = browser.show(PAGE, "[...document.querySelectorAll('.card')].map(card => card.innerText)").told
    compacted, deleted = several().totals()
    for card, totals, name in zip(cards, (compacted, deleted), POLICIES, strict=True):
        freed = 100 * (totals.before.bytes - totals.after.bytes) / totals.before.bytes
        assert name in card.replace("\n", "")
        assert f"{freed:.1f} %" in card
        assert f"{totals.before.bytes // 1000} kB → {totals.after.bytes // 1000} kB" in card
        assert f"{totals.before.records:,} → {totals.after.records:,}" in card
    assert "2 cleaned, 1 refused" in cards[0]


@pytest.mark.browser
def test_every_chart_is_drawn_within_its_box(browser: Browser) -> None:
    script = f"""return {list(CHARTS)!r}.map(id => {{
        const svg = document.querySelector(`#${{id}} svg`), box = document.getElementById(id).getBoundingClientRect();
        const drawn = [...svg.querySelectorAll('rect')].filter(rect => rect.width.baseVal.value > 0);
        const inside = drawn.every(rect => {{
            const at = rect.getBoundingClientRect();
            return at.left >= box.left - 1 && at.right <= box.right + 1 && at.top >= box.top - 1 && at.bottom <= box.bottom + 1;
        }});
        return [drawn.length, inside, svg.getAttribute('aria-label').length > 5];
    }});"""
    for chart, (rects, inside, labelled) in zip(CHARTS, browser.show(PAGE, script).told, strict=True):
        assert rects > 0, chart
        assert inside, chart
        assert labelled, chart


@pytest.mark.browser
def test_bars_are_as_long_as_their_figures(browser: Browser) -> None:
    script = """return ['left', 'compacted', 'expired'].map(kind =>
        [...document.querySelectorAll(`#bytes rect.${kind}`)].map(rect => rect.width.baseVal.value))"""
    left, compacted, expired = browser.show(PAGE, script).told
    for number, totals in enumerate(several().totals()):
        whole = left[number] + compacted[number] + expired[number]
        assert left[number] / whole == pytest.approx(totals.after.bytes / totals.before.bytes, abs=0.01)
        assert expired[number] / whole == pytest.approx(totals.expired.bytes / totals.before.bytes, abs=0.01)


@pytest.mark.browser
def test_columns_are_as_high_as_their_figures(browser: Browser) -> None:
    script = """return ['compacted', 'expired'].map(kind =>
        [...document.querySelectorAll(`#ages-1 rect.${kind}`)].map(rect => rect.height.baseVal.value))"""
    compacted, expired = browser.show(PAGE, script).told
    heights = [one + other for one, other in zip(compacted, expired, strict=True)]
    by_age = [count for count in several().totals()[1].gone.by_age if count]
    assert [height / sum(heights) for height in heights] == pytest.approx([count / sum(by_age) for count in by_age], abs=0.01)


@pytest.mark.browser
def test_expired_records_have_the_colour_of_expired_ones_in_each_chart(browser: Browser) -> None:
    page = comparison(log("orders-0", 100, left=(50, 80), expired=20)).to_html()
    script = """return ['compacted', 'expired'].map(kind => ['ages-0', 'ages-1'].map(id =>
        [...document.querySelectorAll(`#${id} rect.${kind}`)].filter(rect => rect.height.baseVal.value > 0).length))"""
    compacted, expired = browser.show(page, script).told
    # the first policy compacts, the second one only deletes
    assert compacted == [2, 0]
    assert expired == [0, 2]


@pytest.mark.browser
def test_a_label_above_a_column_says_what_the_higher_bar_is(browser: Browser) -> None:
    script = "[...document.querySelectorAll('#ages-0 text')].map(text => text.textContent)"
    # nine columns, too narrow for one line
    all_ages, removed = Distribution((900,) * 9, (1,) * 9, (1,) * 50), Distribution((100,) * 9, (1,) * 9, (1,) * 50)
    made = log("orders-0", 100)
    outcomes = tuple(replace(each, gone=removed, expired_by_age=()) for each in made.outcomes)
    labels = browser.show(comparison(replace(made, spread=all_ages, outcomes=outcomes)).to_html(), script).told
    counts = [text for text in labels if re.fullmatch(r"(of )?[0-9,. kMGT]+( of [0-9,. kMGT]+)?", text)]
    assert len(counts) == 18
    assert all("of " in text or counts[number + 1].startswith("of ") for number, text in enumerate(counts))


@pytest.mark.browser
def test_a_refused_log_has_no_share_in_the_table(browser: Browser) -> None:
    script = "[...document.querySelectorAll('tbody tr')].map(row => row.innerText)"
    (row,) = [text for text in browser.show(PAGE, script).told if text.startswith("payments-0")]
    assert "refused" in row
    # that of the second policy
    assert re.findall(r"[\d.]+ %", row) == ["40.0 %"]


NAMES = "[...document.querySelectorAll('tbody td:first-child')].map(cell => cell.innerText.trim())"


@pytest.mark.browser
@pytest.mark.parametrize(
    ("clicks", "order"),
    [
        ([], ["orders-10", "payments-0", "orders-2", "broken-0"]),
        (["name"], ["broken-0", "orders-2", "orders-10", "payments-0"]),
        (["name", "name"], ["payments-0", "orders-10", "orders-2", "broken-0"]),
        (["before"], ["broken-0", "orders-2", "payments-0", "orders-10"]),
        (["policy-0"], ["orders-2", "orders-10", "payments-0", "broken-0"]),
        (["policy-0", "policy-0"], ["payments-0", "broken-0", "orders-10", "orders-2"]),
    ],
)
def test_the_table_is_sorted_by_the_selected_column(browser: Browser, clicks: list[str], order: list[str]) -> None:
    steps = "".join(f"document.querySelector('[data-sort={name}]').click();" for name in clicks)
    sort = "[...document.querySelectorAll('th')].filter(cell => cell.ariaSort !== 'none').map(cell => cell.ariaSort)"
    names, sorts = browser.show(PAGE, f"{steps} return [{NAMES}, {sort}]").told
    assert names == order
    assert len(sorts) == 1


@pytest.mark.browser
def test_the_table_is_filtered_by_name(browser: Browser) -> None:
    script = f"""const box = document.getElementById('filter'); box.value = 'ORD';
        box.dispatchEvent(new Event('input')); return {NAMES}"""
    assert browser.show(PAGE, script).told == ["orders-10", "orders-2"]


@pytest.mark.browser
def test_a_selected_log_is_shown_with_its_conditions_or_why_it_has_no_figures(browser: Browser) -> None:
    script = """const select = number => document.querySelector(`[data-log="${number}"]`).click();
        const card = () => document.querySelector('.card').innerText;
        select(2);
        const shown = [card(), document.getElementById('why').innerText];
        select(2);
        shown.push(!document.getElementById('why'), card());
        select(3);
        return [...shown, document.querySelector('#why p').innerText]"""
    shown = browser.show(PAGE, script)
    card, why, hidden_again, all_again, of_a_failed_log = shown.told
    assert "200 kB → 200 kB" in card and "0.0 %" in card
    assert "becomes cleanable after 3 kB more" in why and "refused" in why
    assert hidden_again
    assert "700 kB" in all_again
    assert of_a_failed_log == "segment is damaged"
    assert shown.console == ()


@pytest.mark.browser
def test_light_and_dark_are_both_readable(browser: Browser) -> None:
    script = """const numbers = text => text.match(/\\d+/g).map(Number), clear = 'rgba(0, 0, 0, 0)';
        return ['body', '.card', '.sub', '.state'].map(name => {
            let at = document.querySelector(name), ground = clear;
            const ink = getComputedStyle(at).color;
            for (; at && ground === clear; at = at.parentElement) ground = getComputedStyle(at).backgroundColor;
            return [numbers(ink), numbers(ground)];
        })"""
    grounds = []
    for flags in ((), (DARK,)):
        pairs = browser.show(PAGE, script, *flags).told
        assert all(contrast(ink[:3], ground[:3]) >= 4.5 for ink, ground in pairs)
        grounds.append(luminance(pairs[0][1][:3]))
    assert grounds[0] > 0.8
    assert grounds[1] < 0.1


def luminance(colour: list[int]) -> float:
    parts = [value / 255 / 12.92 if value / 255 <= 0.04045 else ((value / 255 + 0.055) / 1.055) ** 2.4 for value in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: list[int], other: list[int]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.browser
def test_a_phone_needs_no_sideways_scrolling_but_in_the_table(browser: Browser) -> None:
    script = """const root = document.documentElement;
        const all = name => [...document.querySelectorAll(name)], right = each => each.getBoundingClientRect().right;
        const wide = all('body *').filter(each => !each.closest('.scroll, .hidden') && right(each) > root.clientWidth + 1)
            .map(each => each.outerHTML.slice(0, 80));
        const letters = all('svg text').map(each => parseFloat(getComputedStyle(each).fontSize));
        const scale = all('svg').map(each => each.getBoundingClientRect().width / each.viewBox.baseVal.width);
        return [root.clientWidth, root.scrollWidth, wide, Math.min(...letters), Math.min(...scale), Math.max(...scale)]"""
    width, scrolled, wide, smallest, least, most = browser.show_on_phone(PAGE, script).told
    assert (width, scrolled, wide) == (360, 360, [])
    assert smallest >= 12
    assert 0.95 < least <= most < 1.05


LONG = "a-service.with-a-very-long-name.and-a-purpose.of-its-own-0"


@pytest.mark.browser
def test_a_phone_shows_the_freed_share_of_each_log_without_scrolling(browser: Browser) -> None:
    script = """return [...document.querySelectorAll('#table tbody tr')].map(row => {
        const cell = [...row.cells].find(each => each.textContent.includes('%'));
        return Math.max(...[...cell.childNodes].map(node => {
            const range = document.createRange(); range.selectNode(node); return range.getBoundingClientRect().right;
        }));
    })"""
    rights = browser.show_on_phone(comparison(log(LONG, 100), log("orders-0", 400)).to_html(), script).told
    assert len(rights) == 2 and max(rights) <= 360


@pytest.mark.browser
def test_text_of_logs_and_errors_is_not_markup(browser: Browser) -> None:
    nasty = '</script><img src=x onerror="document.title=1"><b id="evil">&amp;\u2028'
    page = comparison(log("a-0", 5, log_dir=nasty, reason=nasty), failed("b-0", nasty)).to_html()
    script = """document.querySelector('[data-log="0"]').click();
        return [document.getElementById('evil'), document.images.length, document.title,
            document.getElementById('why').textContent]"""
    shown = browser.show(page, script)
    evil, images, title, why = shown.told
    assert (evil, images, title) == (None, 0, "2 policies, 2 logs")
    assert printable(nasty) in why
    assert shown.console == ()


def test_without_scripts_the_page_has_the_text_of_the_result() -> None:
    assert f"<pre>{escape(str(several()))}</pre></noscript>" in PAGE


@pytest.mark.browser
def test_a_comparison_of_nothing_is_shown(browser: Browser) -> None:
    shown = browser.show(comparison().to_html(), "document.querySelectorAll('.card').length")
    assert (shown.told, shown.console) == (2, ())


@pytest.mark.browser
def test_thousands_of_logs_are_shown_quickly(browser: Browser) -> None:
    page = comparison(*(log(f"topic-{number}", number + 1) for number in range(2000))).to_html()
    assert len(page) < 5_000_000
    script = """const began = performance.now(); draw(); const took = performance.now() - began;
        return [document.querySelectorAll('tbody tr').length, took]"""
    rows, took_ms = browser.show(page, script).told
    assert rows == 2000
    assert took_ms < 5000


def test_conditions_are_omitted_with_very_many_logs() -> None:
    few, many = (comparison(*(log(f"t-{n}", 1) for n in range(count))).to_html() for count in (2, MOST_EXPLAINED + 1))
    assert "becomes cleanable after" in few
    assert "becomes cleanable after" not in many


@pytest.mark.browser
def test_ages_have_labels(browser: Browser) -> None:
    assert browser.show(PAGE, "ageNames(DOCUMENT.age_bounds_ms)").told == [
        "in the future", "up to 1 h", "1 h to 1 d", "1 d to 7 d", "7 d to 30 d", "30 d to 90 d", "90 d to 1 y",
        "1 y and older", "no time",
    ]  # fmt: skip


DAY_MS = 86_400_000
FIRST_MS = 20_000 * DAY_MS
DAYS = 60


def effect(policy: str, every: int, scale: int) -> Effect:
    """Grows every day, and is cleaned at times."""
    sizes = [scale * (100 + 10 * (day % every)) for day in range(DAYS)]
    samples = [
        Sample(FIRST_MS + day * DAY_MS, size, size, size, size, 0, size // 3, 4, scale * 50 * day)
        for day, size in enumerate(sizes)
    ]
    events = [Event(FIRST_MS + day * DAY_MS, "cleaned", sizes[day - 1], sizes[day]) for day in range(every, DAYS, every)]
    events.append(Event(FIRST_MS + 30 * DAY_MS, "deleted", 7, 0))
    return Effect(policy, tuple(samples), tuple(sorted(events, key=lambda event: event.at_ms)), 5 * DAY_MS, DAY_MS)


def result(logs: int = 3) -> OverTime:
    known = Known(False, "estimated for a test", False, FIRST_MS, FIRST_MS + DAY_MS, 0.25, 1000)
    policies = ("configured", "segment.ms=1d,min.cleanable.dirty.ratio=0.1")
    effects = [tuple(effect(name, 9 - 4 * at, number + 1) for at, name in enumerate(policies)) for number in range(logs)]
    simulated = [SimulatedLog("orders", number, "/kafka", known, each) for number, each in enumerate(effects)]
    broken = SimulatedLog("broken </script>", 0, "/kafka", error="its times say <nothing>")
    return OverTime("run", FIRST_MS + 45 * DAY_MS, policies, (*simulated, broken), DAY_MS, 14 * DAY_MS)


OVER_TIME = result().to_html()


def test_a_name_does_not_end_the_script() -> None:
    assert OVER_TIME.count("</script>") == 2


def test_a_page_of_very_many_logs_remains_small() -> None:
    many = replace(result(), logs=tuple(replace(result(1).logs[0], partition=number) for number in range(1000)))
    views = many.page_document()["views"]
    assert len(views) == MOST_VIEWS + 1
    assert f"The {MOST_VIEWS} largest topics and logs can be chosen" in many.page_document()["about"]
    assert len(many.to_html()) < 5_000_000


@pytest.mark.browser
@pytest.mark.parametrize(("width", "flags"), [(390, ()), (390, (DARK,)), (1280, ()), (1280, (DARK,))])
def test_it_fits_the_width_and_has_contrast(browser: Browser, width: int, flags: tuple[str, ...]) -> None:
    script = """
      const wide = document.documentElement.scrollWidth - window.innerWidth;
      const parts = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
      const bright = ([red, green, blue]) => (299 * red + 587 * green + 114 * blue) / 1000;
      const ground = bright(parts(getComputedStyle(document.querySelector('#blocks > section:not(#cards)')).backgroundColor));
      const lines = [...document.querySelectorAll('polyline')].map((node) => bright(parts(getComputedStyle(node).color)));
      return [wide, Math.min(...lines.map((line) => Math.abs(line - ground)))];
    """
    overflow, contrast = browser.show(OVER_TIME, script, *flags, size=(width, 900)).told
    assert overflow <= 0
    assert contrast > 60


@pytest.mark.browser
def test_events_are_read_by_keyboard(browser: Browser) -> None:
    script = """
      const marks = [...document.querySelectorAll('#size .mark')];
      marks[0].focus();
      return [marks.length, marks.every((mark) => mark.tabIndex === 0), document.activeElement === marks[0],
        document.getElementById('event').textContent, marks.map((mark) => mark.getAttribute('aria-label'))];
    """
    number, reachable, focused, text, labels = browser.show(OVER_TIME, script).told
    assert reachable and focused and number > 10
    assert text == labels[0]
    assert re.fullmatch(r"A, 2024-10-13 00:00 UTC: cleaned .* to .*", text)
    assert any("deleted" in label for label in labels)


@pytest.mark.browser
def test_a_screen_reader_has_words_for_each_chart_and_a_table(browser: Browser) -> None:
    script = """
      document.querySelector('details').open = true;
      return [[...document.querySelectorAll('svg')].map((node) => node.getAttribute('aria-label')),
        document.querySelectorAll('#samples tbody tr').length, document.getElementById('notes').textContent,
        document.querySelectorAll('.now').length, document.querySelectorAll('polyline').length];
    """
    labels, rows, notes, now, curves = browser.show(OVER_TIME, script).told
    assert all("A configured: " in label and "at the end" in label for label in labels) and len(labels) == 2
    # two charts of two policies
    assert (rows, now, curves) == (DAYS, 2, 4)
    assert "its times say <nothing>" in notes


@pytest.mark.browser
def test_one_log_can_be_chosen(browser: Browser) -> None:
    script = """
      const box = document.getElementById('shown');
      box.value = '2';
      box.dispatchEvent(new Event('change'));
      return [[...box.options].map((option) => option.text), document.getElementById('notes').textContent,
        document.querySelector('.card .big').textContent];
    """
    options, notes, peak = browser.show(OVER_TIME, script).told
    assert options == ["all of 3 logs", "orders-0", "orders-1", "orders-2"]
    assert "estimated for a test" in notes and "25 % of its records are gone" in notes
    assert peak == "360 B peak"


def page_of_many_keys() -> str:
    ranges = tuple(RepetitionRange((1 << n >> 1) + 1, 1 << n, 900 - 100 * n, 9) for n in range(7))
    return comparison(replace(log("orders-0", 100), keys=KeyFigures(1000, 999, ranges))).to_html()


def page_of_equal_policies() -> str:
    """Neither the letters of policies that end alike may overlap, nor that of the present near the end."""
    shown = result(1)
    policies = tuple(f"segment.ms={number}d" for number in range(1, 7))
    logs = (replace(shown.logs[0], effects=tuple(effect(name, 5, 3) for name in policies)),)
    return replace(shown, policies=policies, logs=logs, as_of_ms=FIRST_MS + (DAYS - 2) * DAY_MS).to_html()


@pytest.mark.browser
@pytest.mark.parametrize("page", [page_of_many_keys, page_of_equal_policies])
def test_labels_of_a_chart_do_not_overlap_on_a_phone(browser: Browser, page: Callable[[], str]) -> None:
    assert browser.show_on_phone(page(), OVERLAPPING).told == []


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
        "over time": result(),
    }


KINDS = ("run", "verification", "count", "comparison", "over time")


class Printer:
    """IPython's, as far as a result needs it."""

    shown = ""

    def text(self, text: str) -> None:
        self.shown += text


@pytest.mark.parametrize("kind", KINDS)
def test_a_notebook_shows_the_charts_apart_from_its_own_page_and_ipython_the_text(
    results: dict[str, PageResult], kind: str
) -> None:
    found = re.fullmatch(r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts" [^<>]*></iframe>', results[kind]._repr_html_())
    assert found is not None
    assert unescape(found[1]) == results[kind].to_html()
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


@pytest.mark.browser
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_requests_no_address_and_logs_no_error(browser: Browser, results: dict[str, PageResult], kind: str) -> None:
    shown = browser.show(results[kind].to_html(), "document.body.innerText.length")
    assert (shown.told > 100, shown.addresses, shown.console) == (True, (), ())


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_no_address_and_no_placeholder(results: dict[str, PageResult], kind: str) -> None:
    page = results[kind].to_html()
    assert re.findall(r"(?:https?:)?//[\w.]+|\bsrc=|\bhref=|url\(|@import|\bimport\(|fetch\(", page) == []
    assert "default-src 'none'" in page and "<!--" not in page


@pytest.mark.browser
def test_the_page_of_a_run_has_its_figures(browser: Browser, results: dict[str, PageResult]) -> None:
    shown = browser.show(results["run"].to_html(), "document.body.innerText")
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
