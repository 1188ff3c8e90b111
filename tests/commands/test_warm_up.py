"""``warm-up`` compiles all kernels, shows whether they are cached, and needs neither Java nor Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compaction.commands import warm_up
from compaction.kernels import all_kernels, cache

ROOT = Path(__file__).resolve().parents[2]


def run(cache: Path | str, *options: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that finds no Java."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA", "SPARK", "JAVA"))}
    return subprocess.run(
        [sys.executable, "-m", "jobs", "warm-up", *options],
        env={**kept, "NUMBA_CACHE_DIR": str(cache), "PATH": ""}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_status_compiles_nothing(tmp_path: Path) -> None:
    done = run(tmp_path / "cache", "--status")
    assert (done.returncode, done.stderr) == (1, "")
    assert "so far" in done.stdout
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_a_cache_nothing_is_compiled() -> None:
    done = run(os.devnull)
    assert (done.returncode, done.stdout) == (1, "")
    assert "set NUMBA_CACHE_DIR" in done.stderr


def test_kernels_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    compiled: list[bool] = []
    monkeypatch.setattr(cache, "process_cache_dir", lambda: tmp_path)
    monkeypatch.setattr(cache, "are_all_compiled", lambda: bool(compiled))
    monkeypatch.setattr(all_kernels, "compile_all", lambda: compiled.append(True))
    assert [warm_up.main([]), warm_up.main([])] == [0, 0]
    assert compiled == [True]
    assert "all compiled" in capsys.readouterr().out


@pytest.mark.slow
def test_all_kernels_are_compiled(tmp_path: Path) -> None:
    done = run(tmp_path / "cache")
    assert (done.returncode, done.stderr) == (0, "")
    assert "all compiled" in done.stdout
    assert run(tmp_path / "cache", "--status").stdout == done.stdout
