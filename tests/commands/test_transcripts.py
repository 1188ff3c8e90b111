"""The calls of ``calls/*.txt``, whose language is that of ``transcripts``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.transcripts import Transcript, matches, transcripts


@pytest.mark.parametrize(("file", "title"), transcripts())
def test_calls(file: str, title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    rewrite = request.config.getoption("--rewrite-golden")
    Transcript(tmp_path, monkeypatch, request.getfixturevalue("capfdbinary")).run(file, title, rewrite=rewrite)


def test_other_lines_do_not_match() -> None:
    assert matches(["a…", "...", "[2]"], ["ab", "c", "d", "[2]"]) and matches(["...", "b"], ["b"])
    for found in (["b", "[2]"], ["a", "[1]"], ["a", "[2]", "c"], []):
        assert not matches(["a…", "...", "[2]"], found)
