"""The status line of a terminal."""

from __future__ import annotations

import io
import threading
import time

from compaction.screen.progress import INTERVAL_S, StatusLine

CLEAR = "\r\x1b[2K"


class Clock:
    now_s = 5.0

    def __call__(self) -> float:
        return self.now_s


def test_a_step_is_shown_at_once_and_with_its_time_when_it_lasts() -> None:
    stream, clock = io.StringIO(), Clock()
    status = StatusLine(stream, lambda: 80, clock)
    status.step("reading 3 logs")
    assert stream.getvalue() == f"{CLEAR}reading 3 logs ..."
    clock.now_s += 62
    deadline = time.monotonic() + 20
    while "1 min 2 s" not in stream.getvalue() and time.monotonic() < deadline:
        time.sleep(INTERVAL_S / 4)
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
