"""The first run of a job compiles each kernel once over all of its processes, the next one none."""

from __future__ import annotations

import collections
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import unpack_sample

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
AS_OF_MS = 1_798_761_600_000

#: loaded by every Python process of a run: notes each kernel that it compiles
LISTENER = """
import os
from numba.core import event
class Listener(event.Listener):
    def on_start(self, what):
        dispatcher = what.data["dispatcher"]
        if type(dispatcher._cache).__name__ == "KernelCache":
            with open(os.environ["COMPILED"], "a") as file:
                file.write(f"{dispatcher.__module__}.{dispatcher.__name__} {what.data['args']}\\n")
    def on_end(self, what):
        pass
event.register("numba:compile", Listener())
"""


def compiled_by_a_run(package: Path, tmp_path: Path, name: str, *options: str) -> collections.Counter[str]:
    """What a run over the sample compiles, and how often."""
    (tmp_path / "sitecustomize.py").write_text(LISTENER)
    noted = tmp_path / f"{name}.txt"
    noted.touch()
    done = subprocess.run(
        [sys.executable, "-B", str(package / "jobs/compact.py"), "--log-dir", str(unpack_sample(tmp_path / name)), *options],
        env={
            **{each: value for each, value in os.environ.items() if not each.startswith(("NUMBA", "XDG_CACHE", "SPARK"))},
            "HOME": str(tmp_path / "home"),
            "PYTHONPATH": str(tmp_path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COMPILED": str(noted),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return collections.Counter(noted.read_text().splitlines())


def test_each_kernel_is_compiled_once_and_kept_outside_of_the_package(tmp_path: Path) -> None:
    package = tmp_path / "package"
    for part in ("compaction", "jobs"):
        shutil.copytree(ROOT / part, package / part, ignore=shutil.ignore_patterns("__pycache__"))
    for directory in [package, *(each for each in package.rglob("*") if each.is_dir())]:
        directory.chmod(0o555)
    before = sorted(package.rglob("*"))
    options = ("--as-of-ms", str(AS_OF_MS), "--include-active", "--engine", "spark")
    first = compiled_by_a_run(package, tmp_path, "first", *options)
    assert any("rewrite.rewrite" in each for each in first)
    assert set(first.values()) == {1}, first
    cached = tmp_path / "home/.cache/kafka-log-compaction/numba"
    assert len(list(cached.rglob("*.kernel"))) == len(first)
    assert not compiled_by_a_run(package, tmp_path, "second", *options)
    assert sorted(package.rglob("*")) == before
