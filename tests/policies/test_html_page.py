"""The page, opened from disk in a real browser: what it shows, how it reacts, and that it needs nothing but itself."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest

from compaction.policies.comparison import MOST_EXPLAINED, Comparison, Distribution, KeyFigures, OutcomeStatus, RepetitionRange
from compaction.printable import printable
from tests.policies.browser import DARK, OVERLAPPING, Browser
from tests.policies.made import POLICIES, comparison, failed, log

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
def test_it_requests_no_address_and_logs_no_error(browser: Browser) -> None:
    shown = browser.show(PAGE)
    assert (shown.addresses, shown.console) == ((), ())


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
def test_a_selected_log_is_shown_with_its_conditions(browser: Browser) -> None:
    script = """document.querySelector('[data-log="2"]').click();
        const before = document.querySelector('.card').innerText;
        const why = document.getElementById('why').innerText, visible = true;
        document.querySelector('[data-log="2"]').click();
        const hidden = !document.getElementById('why');
        return [before, why, visible, hidden, document.querySelector('.card').innerText]"""
    card, why, visible, hidden_again, all_again = browser.show(PAGE, script).told
    assert "200 kB → 200 kB" in card
    assert "0.0 %" in card
    assert visible
    assert "becomes cleanable after 3 kB more" in why
    assert "refused" in why
    assert hidden_again
    assert "700 kB" in all_again


@pytest.mark.browser
def test_a_log_without_figures_says_why(browser: Browser) -> None:
    script = """document.querySelector('[data-log="3"]').click(); return document.querySelector('#why p').innerText"""
    shown = browser.show(PAGE, script)
    assert shown.told == "segment is damaged"
    assert shown.console == ()


@pytest.mark.browser
def test_light_and_dark_are_both_readable(browser: Browser, tmp_path: Path) -> None:
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
    assert browser.picture(PAGE, tmp_path / "light.png") != browser.picture(PAGE, tmp_path / "dark.png", DARK)


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
def test_labels_of_a_chart_do_not_overlap_on_a_phone(browser: Browser) -> None:
    ranges = tuple(RepetitionRange((1 << n >> 1) + 1, 1 << n, 900 - 100 * n, 9) for n in range(7))
    page = comparison(replace(log("orders-0", 100), keys=KeyFigures(1000, 999, ranges))).to_html()
    assert browser.show_on_phone(page, OVERLAPPING).told == []


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
