"""Progress of a run: plain lines, bars, and the status line of a terminal."""

from __future__ import annotations

import io
import threading
from functools import partial

import pytest

from compaction.screen.progress import LINE_INTERVAL_S, Progress, StatusLine
from tests.waiting import wait_until

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
