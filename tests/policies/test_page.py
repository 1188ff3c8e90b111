"""The page of policies through time, opened from disk in a real browser."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from compaction.policies.result import MOST_VIEWS, Effect, Event, Fit, Known, OverTime, Sample, SimulatedLog, Trial
from tests.policies.browser import DARK, OVERLAPPING, Browser

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


def result(logs: int = 3, *, topic: str = "orders") -> OverTime:
    known = Known(False, "estimated for a test", False, FIRST_MS, FIRST_MS + DAY_MS, 0.25, 1000)
    policies = ("configured", "segment.ms=1d,min.cleanable.dirty.ratio=0.1")
    effects = [tuple(effect(name, 9 - 4 * at, number + 1) for at, name in enumerate(policies)) for number in range(logs)]
    simulated = [SimulatedLog(topic, number, "/kafka", known, each) for number, each in enumerate(effects)]
    broken = SimulatedLog("broken </script>", 0, "/kafka", error="its times say <nothing>")
    trials = (Trial((), 9, 8, 7, 6), Trial(("segment.ms=1d",), 5, 4, 3, 2))
    found = Fit("configured", 6, trials[1], trials[1], trials)
    return OverTime("run", FIRST_MS + 45 * DAY_MS, policies, (*simulated, broken), DAY_MS, 14 * DAY_MS, found)


PAGE = result().to_html()


def test_a_name_does_not_end_the_script() -> None:
    assert PAGE.count("</script>") == 2


def test_a_page_of_very_many_logs_remains_small() -> None:
    many = replace(result(), logs=tuple(replace(result(1).logs[0], partition=number) for number in range(1000)))
    views = many.page_document()["views"]
    assert len(views) == MOST_VIEWS + 1
    assert f"The {MOST_VIEWS} largest topics and logs can be chosen" in many.page_document()["about"]
    assert len(many.to_html()) < 5_000_000


@pytest.mark.browser
def test_it_requests_no_address_and_logs_no_error(browser: Browser) -> None:
    shown = browser.show(PAGE, "document.querySelectorAll('polyline').length")
    assert (shown.told, shown.addresses, shown.console) == (4, (), ())


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
    overflow, contrast = browser.show(PAGE, script, *flags, size=(width, 900)).told
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
    number, reachable, focused, text, labels = browser.show(PAGE, script).told
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
        document.querySelectorAll('#fit tbody tr').length, document.querySelectorAll('.now').length];
    """
    labels, rows, notes, trials, now = browser.show(PAGE, script).told
    assert all("A configured: " in label and "at the end" in label for label in labels) and len(labels) == 2
    assert (rows, trials, now) == (DAYS, 2, 2)
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
    options, notes, peak = browser.show(PAGE, script).told
    assert options == ["all of 3 logs", "orders-0", "orders-1", "orders-2"]
    assert "estimated for a test" in notes and "25 % of its records are gone" in notes
    assert peak == "360 B peak"


@pytest.mark.browser
def test_labels_of_a_chart_do_not_overlap_on_a_phone(browser: Browser) -> None:
    """Neither the letters of policies that end alike, nor that of the present near the end."""
    shown = result(1)
    policies = tuple(f"segment.ms={number}d" for number in range(1, 7))
    logs = (replace(shown.logs[0], effects=tuple(effect(name, 5, 3) for name in policies)),)
    page = replace(shown, policies=policies, logs=logs, as_of_ms=FIRST_MS + (DAYS - 2) * DAY_MS).to_html()
    assert browser.show_on_phone(page, OVERLAPPING).told == []
