"""The commands of ``docs/over-time.md`` print the figures of the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from compaction.commands import dry_run
from tests.policies.customers import write

PAGE = Path(__file__).parents[2] / "docs/over-time.md"


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kafka-1")
    write(path)
    return path


@pytest.mark.slow
def test_the_commands_of_the_page_print_its_figures(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, table = re.findall(r"^```\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[:2]
    argv = shlex.split(command.replace("\\\n", " "))[2:]
    argv[argv.index("--log-dir") + 1] = str(log_dir)
    page = argv.index("--html")
    del argv[page : page + 2]
    assert dry_run.main([*argv, "--engine", "local"]) == 0
    printed = words(capsys.readouterr().out)
    # the terminal adds a column with a curve
    assert [line for line in words(table) if not any(line == found[: len(line)] for found in printed)] == []


def words(text: str) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in text.splitlines() if line.strip()]
