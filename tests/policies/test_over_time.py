"""The commands of ``docs/over-time.md`` print the figures of the page. What else ``dry-run --over-time`` shows is in
``tests/commands/calls/over_time.txt``."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import compaction
from compaction.commands import dry_run
from tests.golden import unpack_sample
from tests.policies.customers import write

PAGE = Path(__file__).parents[2] / "docs/over-time.md"


@pytest.mark.slow
def test_the_commands_of_the_page_print_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    command, table = re.findall(r"^```\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[:2]
    argv = shlex.split(command.replace("\\\n", " "))[2:]
    argv[argv.index("--log-dir") + 1] = str(tmp_path)
    page = argv.index("--html")
    del argv[page : page + 2]
    assert dry_run.main([*argv, "--engine", "local"]) == 0
    printed = words(capsys.readouterr().out)
    # the terminal adds a column with a curve
    assert [line for line in words(table) if not any(line == found[: len(line)] for found in printed)] == []


def words(text: str) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in text.splitlines() if line.strip()]


def test_the_hint_at_an_old_copy_names_a_keyword_in_the_python_api(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    compaction.dry_run(unpack_sample(tmp_path, "orders"), as_of="2025-10-20T00:00Z", over_time=True, engine="local")
    assert " before as_of: if this is an old copy, give as_of " in caplog.text
