"""Signals that stop a command."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from compaction import signals

ROOT = Path(__file__).resolve().parents[2]
_FRAME = """
import signal, time
from compaction.cli import interrupts
number = signal.Signals({number})
try:
    with interrupts.handled():
{body}
except KeyboardInterrupt:
    interrupts.report_once()
    raise SystemExit(interrupts.exit_code())
"""


def run_with_handlers(body: str, number: signal.Signals) -> subprocess.CompletedProcess[str]:
    """A process that runs ``body``, in which ``number`` is the signal, as a command does."""
    script = _FRAME.format(number=int(number), body=textwrap.indent(textwrap.dedent(body), " " * 8))
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "stopped by SIGTERM")])
def test_a_signal_whose_exception_a_destructor_swallows_is_sent_again(number: signal.Signals, reason: str) -> None:
    body = """\
        class Resource:
            def __del__(self):
                signal.raise_signal(number)
        Resource()
        time.sleep(30)
        print("went on")
        """
    done = run_with_handlers(body, number)
    line = f"{reason}; no log was changed\n"
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", line)


def test_other_errors_in_destructors_are_shown() -> None:
    body = """\
        class Resource:
            def __del__(self):
                raise ValueError("lost")
        Resource()
        """
    done = run_with_handlers(body, signal.SIGINT)
    assert done.returncode == 0
    assert "ValueError: lost" in done.stderr


def test_a_deferred_signal_arrives_at_the_end_even_if_the_block_fails() -> None:
    arrived: list[int] = []
    usual = signal.signal(signal.SIGTERM, lambda number, frame: arrived.append(number))
    try:
        with pytest.raises(ValueError, match="failed"), signals.deferred(lambda number: arrived.append(-number)):
            signal.raise_signal(signal.SIGTERM)
            assert arrived == [-signal.SIGTERM]
            raise ValueError("failed")
        assert arrived == [-signal.SIGTERM, signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, usual)
