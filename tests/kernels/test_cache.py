"""Where compiled kernels are kept, and that each is compiled once, whoever needs it and wherever that can be."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compaction.kernels.cache import cache_dir, fingerprint

ROOT = Path(__file__).resolve().parents[2]

#: looks for batches, and tells how many kernels it compiled to do so, and what it found itself in
PROBE = """
import json, sys
from numba.core import event
compiled = []
class Listener(event.Listener):
    def on_start(self, what):
        compiled.append(what.data["dispatcher"])
    def on_end(self, what):
        pass
event.register("numba:compile", Listener())
from compaction.kernels import batches
from compaction.passes import ahead
ahead.scan()
kernels = [each.__name__ for each in compiled if type(each._cache).__name__ == "KernelCache"]
print(json.dumps({"compiled": kernels, "module": batches.__file__, "missing": ahead.missing("scan")}))
"""


def probe(tmp_path: Path, package: Path = ROOT, **environment: str) -> tuple[dict[str, object], str]:
    """What a process of its own tells, and its standard error."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA", "XDG"))}
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROBE],
        env={**kept, "PYTHONPATH": str(package), "TMPDIR": str(tmp_path), **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told, done.stderr


def blocked(tmp_path: Path) -> Path:
    """A home directory below which nobody, root included, can make a directory."""
    home = tmp_path / "home"
    home.write_text("a file")
    return home


class TestCacheDir:
    @pytest.fixture(autouse=True)
    def _nothing_set(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def test_is_the_users_own_choice_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "somewhere"))
        assert cache_dir() == tmp_path / "somewhere"

    def test_is_made_in_the_users_cache_for_that_user_only(self, tmp_path: Path) -> None:
        cache = cache_dir(tmp_path)
        assert cache == tmp_path / ".cache/kafka-log-compaction/numba"
        assert cache.stat().st_mode & 0o777 == 0o700
        assert cache_dir(tmp_path) == cache
        assert list(cache.iterdir()) == []

    def test_follows_the_cache_home_if_that_is_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
        assert cache_dir() == tmp_path / "caches/kafka-log-compaction/numba"

    def test_is_the_users_own_temporary_one_where_the_cache_cannot_be_written_and_says_so_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        home = blocked(tmp_path)
        with caplog.at_level(logging.WARNING):
            cache, again = cache_dir(home), cache_dir(home)
        assert cache == again == tmp_path / f"kafka-log-compaction-{os.getuid()}"
        assert cache.stat().st_mode & 0o777 == 0o700
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert str(home) in caplog.text
        assert str(cache) in caplog.text
        assert "NUMBA_CACHE_DIR" in caplog.text

    def test_a_choice_that_cannot_be_written_is_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(blocked(tmp_path) / "kernels"))
        assert cache_dir() == tmp_path / f"kafka-log-compaction-{os.getuid()}"

    @pytest.mark.parametrize("trap", ["open to others", "a link"])
    def test_is_none_where_others_could_have_put_something(
        self, tmp_path: Path, trap: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        place = tmp_path / f"kafka-log-compaction-{os.getuid()}"
        if trap == "a link":
            (tmp_path / "elsewhere").mkdir(mode=0o700)
            place.symlink_to(tmp_path / "elsewhere")
        else:
            place.mkdir()
            place.chmod(0o777)
        with caplog.at_level(logging.WARNING):
            assert cache_dir(blocked(tmp_path)) is None
        assert "kept in memory" in caplog.text


def test_a_kernel_is_compiled_by_one_process_while_others_wait(tmp_path: Path) -> None:
    place = tmp_path / "kernels"
    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(lambda _: probe(tmp_path, NUMBA_CACHE_DIR=str(place))[0], range(3)))
    assert sorted(len(each["compiled"]) for each in told if isinstance(each["compiled"], list)) == [0, 0, 1]
    assert [each.name for each in place.iterdir()] == [fingerprint()]
    assert probe(tmp_path, NUMBA_CACHE_DIR=str(place))[0]["compiled"] == []


def test_a_package_in_a_zip_and_a_home_that_cannot_be_written_do(tmp_path: Path) -> None:
    package = tmp_path / "package.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for file in sorted((ROOT / "compaction").rglob("*.py")):
            archive.write(file, str(file.relative_to(ROOT)))
    home = str(blocked(tmp_path))
    first, noise = probe(tmp_path, package, HOME=home)
    assert str(first["module"]).startswith(str(package))
    assert first["compiled"] == ["scan_v2"]
    assert noise.count("compiled kernels are kept in") == 1
    second, noise = probe(tmp_path, package, HOME=home)
    assert second["compiled"] == []
    assert noise == ""


def test_a_kept_kernel_that_is_damaged_is_compiled_anew(tmp_path: Path) -> None:
    place = tmp_path / "kernels"
    probe(tmp_path, NUMBA_CACHE_DIR=str(place))
    for kept in place.rglob("*.nb?"):
        kept.write_bytes(kept.read_bytes()[:100])
    assert probe(tmp_path, NUMBA_CACHE_DIR=str(place))[0]["compiled"] == ["scan_v2"]
    assert probe(tmp_path, NUMBA_CACHE_DIR=str(place))[0]["compiled"] == []
