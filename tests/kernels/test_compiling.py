"""Kernels are compiled by numba as it is: once, into a directory whose files only this user can have written, also if an
interrupt arrives meanwhile. With bounds checks, no test of theirs finds a read or write outside of an array."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from compaction.kernels.cache import cache_dir, fingerprint
from compaction.kernels.compiling import inner, kernel
from tests.damage.fuzz import BOUNDS_CHECKED

ROOT = Path(__file__).resolve().parents[2]
#: nobody's here
STRANGER = 54321
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")

#: calls the smallest kernel, and tells which kernels it compiled to do so, and what it found itself in
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
import numpy as np
from compaction.kernels import batches, tables
batches.read_control_types(np.zeros(0, np.uint8), 0, np.zeros(0, tables.BATCH_ROW))
kernels = [each.__name__ for each in compiled if type(each._cache).__name__ == "KernelCache"]
print(json.dumps({"compiled": kernels, "module": batches.__file__}))
"""


def python(*arguments: str, cwd: Path = ROOT, umask: int = -1, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, without the caller's settings of numba and of caches."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA", "XDG"))}
    env = {**kept, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, *arguments], env=env, cwd=cwd, umask=umask, capture_output=True, text=True, check=False
    )


def probe(tmp_path: Path, umask: int = -1, **environment: str) -> tuple[dict[str, object], str]:
    """What such a process tells, and its standard error."""
    done = python("-B", "-c", PROBE, cwd=tmp_path, umask=umask, TMPDIR=str(tmp_path), **environment)
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told, done.stderr


def cache_at(home: Path | None = None) -> Path | None:
    """The directory that a new process of a user with this home directory finds."""
    with pytest.MonkeyPatch.context() as patched:
        if home is not None:
            patched.setenv("HOME", str(home))
        return cache_dir.__wrapped__()


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

    @pytest.mark.parametrize(
        ("variable", "chosen", "found"),
        [
            pytest.param("NUMBA_CACHE_DIR", "somewhere", "somewhere", id="the user's own choice"),
            pytest.param("XDG_CACHE_HOME", "caches", "caches/kafka-log-compaction/numba", id="the absolute cache home"),
            # nobody, root included, can make it
            pytest.param("NUMBA_CACHE_DIR", "file/kernels", f"kafka-log-compaction-{os.getuid()}", id="not writable"),
        ],
    )
    def test_is_that_of_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, chosen: str, found: str
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv(variable, str(tmp_path / chosen))
        assert cache_at() == tmp_path / found

    def test_is_made_in_the_users_cache_for_that_user_only_whatever_the_umask(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            cache = cache_at(tmp_path / "home")
        finally:
            os.umask(before)
        assert cache == tmp_path / "home/.cache/kafka-log-compaction/numba"
        assert all(each.stat().st_mode & 0o777 == 0o700 for each in (tmp_path / "home").rglob("*"))
        assert cache_at(tmp_path / "home") == cache
        assert list(cache.iterdir()) == []

    def test_is_a_private_temporary_one_if_the_cache_is_not_writable_with_one_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        home = blocked(tmp_path)
        with caplog.at_level(logging.WARNING):
            cache, again = cache_at(home), cache_at(home)
        assert cache == again == tmp_path / f"kafka-log-compaction-{os.getuid()}"
        assert cache.stat().st_mode & 0o777 == 0o700
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert str(home) in caplog.text
        assert str(cache) in caplog.text
        assert "NUMBA_CACHE_DIR" in caplog.text

    @pytest.mark.parametrize("trap", ["open to others", "a link"])
    def test_is_none_if_others_could_have_written_to_all_of_them(
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
            assert cache_at(blocked(tmp_path)) is None
        assert "kept in memory" in caplog.text

    @pytest.mark.parametrize(
        "trap", ["open to others", "below one open to others", pytest.param("a stranger's", marks=ROOT_ONLY)]
    )
    def test_a_chosen_directory_that_others_may_write_to_is_not_used_with_a_warning(
        self, tmp_path: Path, trap: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        chosen = tmp_path / "above" / "kernels"
        chosen.mkdir(parents=True)
        bad = chosen.parent if trap == "below one open to others" else chosen
        if trap == "a stranger's":
            os.chown(chosen, STRANGER, STRANGER)
        else:
            bad.chmod(0o770)
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(chosen))
        with caplog.at_level(logging.WARNING):
            assert cache_at() == tmp_path / f"kafka-log-compaction-{os.getuid()}"
        why = f"{bad} belongs to user {STRANGER}" if trap == "a stranger's" else f"{bad} can be written by others"
        (message,) = caplog.messages
        assert message.startswith(f"{why}: compiled kernels are kept in {tmp_path}")
        assert message.endswith("set NUMBA_CACHE_DIR to a directory that is yours and that nobody else may write to")
        assert list(chosen.iterdir()) == []

    @ROOT_ONLY
    def test_the_home_that_sudo_preserves_is_neither_used_nor_written(self, tmp_path: Path) -> None:
        home = tmp_path / "home"
        home.mkdir()
        os.chown(home, STRANGER, STRANGER)
        assert cache_at(home) == tmp_path / f"kafka-log-compaction-{os.getuid()}"
        assert list(home.iterdir()) == []

    @ROOT_ONLY
    def test_a_link_that_others_can_replace_is_not_followed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "kernels").mkdir(mode=0o700)
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared").chmod(0o1777)
        link = tmp_path / "shared" / "link"
        link.symlink_to(tmp_path / "kernels")
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(link))
        assert cache_at() == link
        os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
        assert cache_at() == tmp_path / f"kafka-log-compaction-{os.getuid()}"

    def test_a_private_directory_in_a_shared_sticky_one_is_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared").chmod(0o1777)
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "shared" / "a" / "b"))
        assert cache_at() == tmp_path / "shared/a/b"
        assert {each.stat().st_mode & 0o777 for each in (tmp_path / "shared/a", tmp_path / "shared/a/b")} == {0o700}

    def test_nothing_is_written_without_a_cache(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("NUMBA_CACHE_DIR", os.devnull)
        assert cache_at() is None
        assert caplog.messages == []


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of kernels that a process has compiled."""
    place = tmp_path_factory.mktemp("compiled")
    told, _ = probe(place, NUMBA_CACHE_DIR=str(place / "kernels"))
    assert told["compiled"] == ["read_control_types"]
    return place / "kernels"


@pytest.fixture
def kernels(compiled: Path, tmp_path: Path) -> Path:
    """A copy of these."""
    shutil.copytree(compiled, tmp_path / "kernels")
    return tmp_path / "kernels"


class Planted:
    """Makes who reads its pickle write a file."""

    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._proof,)


def plant(kernels: Path, proof: Path) -> list[Path]:
    """Puts such a pickle in place of a kernel's code."""
    planted = sorted(kernels.rglob("*.kernel"))
    for kept in planted:
        content = pickle.dumps((Planted(proof),))
        kept.write_bytes(hashlib.sha256(content).digest() + content)
    return planted


@pytest.mark.parametrize(
    "trap",
    [
        "directory for all",
        "file for all",
        pytest.param("directory of a stranger", marks=ROOT_ONLY),
        pytest.param("file of a stranger", marks=ROOT_ONLY),
    ],
)
def test_files_that_others_could_have_planted_never_run(tmp_path: Path, kernels: Path, trap: str) -> None:
    proof = tmp_path / "proof"
    planted = plant(kernels, proof)
    assert planted
    for each in planted if trap.startswith("file") else [kernels]:
        if trap.endswith("all"):
            each.chmod(0o777)
        else:
            os.chown(each, STRANGER, STRANGER)
    told, noise = probe(tmp_path, NUMBA_CACHE_DIR=str(kernels))
    assert not proof.exists()
    assert told["compiled"] == ["read_control_types"]
    assert ("compiled kernels are kept in" in noise) == trap.startswith("directory")
    if trap.startswith("file"):
        # those that were ignored are replaced
        assert probe(tmp_path, NUMBA_CACHE_DIR=str(kernels))[0]["compiled"] == []


def test_kernels_cached_under_an_open_umask_are_private_and_used(tmp_path: Path) -> None:
    kernels = tmp_path / "kernels"
    assert probe(tmp_path, umask=0, NUMBA_CACHE_DIR=str(kernels))[0]["compiled"] == ["read_control_types"]
    assert all(each.stat().st_mode & 0o077 == 0 for each in kernels.rglob("*"))
    assert probe(tmp_path, NUMBA_CACHE_DIR=str(kernels))[0]["compiled"] == []


def test_a_planted_pickle_would_run_if_it_were_read(tmp_path: Path, kernels: Path) -> None:
    proof = tmp_path / "proof"
    plant(kernels, proof)
    with pytest.raises(AssertionError, match="_rebuild"):
        probe(tmp_path, NUMBA_CACHE_DIR=str(kernels))
    assert proof.exists()


@pytest.mark.slow
def test_a_kernel_is_compiled_by_one_process_while_others_wait(tmp_path: Path) -> None:
    place = tmp_path / "kernels"
    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(lambda _: probe(tmp_path, NUMBA_CACHE_DIR=str(place))[0], range(3)))
    compiled = [name for each in told if isinstance(each["compiled"], list) for name in each["compiled"]]
    assert sorted(compiled) == ["read_control_types"]
    assert [each.name for each in place.iterdir()] == [fingerprint()]
    assert probe(tmp_path, NUMBA_CACHE_DIR=str(place))[0]["compiled"] == []


@pytest.mark.slow
def test_a_zipped_package_and_a_read_only_home_work(tmp_path: Path) -> None:
    package = tmp_path / "package.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for file in sorted((ROOT / "compaction").rglob("*.py")):
            archive.write(file, str(file.relative_to(ROOT)))
    home = str(blocked(tmp_path))
    first, noise = probe(tmp_path, PYTHONPATH=str(package), HOME=home)
    assert str(first["module"]).startswith(str(package))
    assert first["compiled"] == ["read_control_types"]
    assert noise.count("compiled kernels are kept in") == 1
    second, noise = probe(tmp_path, PYTHONPATH=str(package), HOME=home)
    assert second["compiled"] == []
    assert noise == ""


@pytest.mark.slow
def test_copied_kernels_are_used_until_they_are_damaged_and_then_recompiled(tmp_path: Path, kernels: Path) -> None:
    assert probe(tmp_path, NUMBA_CACHE_DIR=str(kernels))[0]["compiled"] == []
    for kept in kernels.rglob("*.kernel"):
        kept.write_bytes(kept.read_bytes()[:100])
    assert probe(tmp_path, NUMBA_CACHE_DIR=str(kernels))[0]["compiled"] == ["read_control_types"]
    assert probe(tmp_path, NUMBA_CACHE_DIR=str(kernels))[0]["compiled"] == []


@inner
def half(value):  # type: ignore[no-untyped-def]
    """Half of an even number."""
    if value & 1:
        raise ValueError("odd")
    return value >> 1


@inner
def half_at(data, k):  # type: ignore[no-untyped-def]
    """Half of ``data[k]``."""
    return half(data[k])


@kernel
def halves(data):  # type: ignore[no-untyped-def]
    """The sum of the halves of ``data``, and their number times 10."""
    total = data[0] - data[0]
    for k in range(len(data)):
        total += half_at(data, k)
    return total, max(10, 5) * len(data)


@kernel
def last_half(data):  # type: ignore[no-untyped-def]
    """Half of the last one."""
    return half_at(data, len(data) - 1)


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.int32])
def test_kernels_share_inner_functions_for_any_types(kind: type) -> None:
    assert halves(np.array([2, 4, 6], kind)) == (6, 30)
    assert last_half(np.array([2, 4, 6], kind)) == 3


def test_an_error_of_an_inner_function_is_raised_by_the_kernel() -> None:
    with pytest.raises(ValueError, match="odd"):
        halves(np.array([2, 3]))
    assert halves(np.array([2, 2])) == (2, 20)


def test_threads_that_call_a_kernel_at_once_compile_it_once() -> None:
    def quarters(data):  # type: ignore[no-untyped-def]
        return half(half_at(data, 0))

    compiled, together, threads = kernel(quarters), Barrier(4), 4

    def call(number: int) -> int:
        together.wait()
        found: int = compiled(np.array([4 * number], np.int16))
        return found

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(call, range(threads))) == list(range(threads))
    assert len(compiled._compiled.overloads) == 1


#: calls a kernel, and prints what of numba's classes and modules is a function or class of this package
CHANGED = """
import sys
import numpy as np
from compaction.kernels import batches, tables
batches.read_control_types(np.zeros(0, np.uint8), 0, np.zeros(0, tables.BATCH_ROW))
ours = lambda value: (getattr(value, "__module__", None) or "").startswith("compaction")
modules = [module for name, module in list(sys.modules.items()) if name.split(".")[0] in ("numba", "llvmlite")]
values = (value for module in modules for value in (module, *vars(module).values()))
holders = {id(value): value for value in values if isinstance(value, (type, type(sys)))}.values()
replaced = [(holder, name) for holder in holders for name, value in list(vars(holder).items()) if ours(value)]
print(len(holders) > 1000, replaced)
"""


def test_no_function_of_numba_is_replaced_for_the_process() -> None:
    done = python("-c", CHANGED)
    assert (done.stdout, done.stderr) == ("True []\n", "")


#: calls a kernel, is interrupted as LLVM asks for code that was compiled before, and calls it again
INTERRUPTED = """
import signal
import numpy as np
from numba.core.codegen import CPUCodeLibrary
from compaction.kernels import slot_table
table = slot_table.SlotTable(slot_table.OFFSETS, 0, 1.0, 0)
empty = np.zeros((0, slot_table.ENTRY_WORDS), np.uint64)
hook, asked = CPUCodeLibrary._object_getbuffer_hook.__func__, []
def interrupted(library, module):
    asked.append(module)
    if len(asked) == 1:
        signal.raise_signal(signal.SIGINT)
    return hook(library, module)
CPUCodeLibrary._object_getbuffer_hook = classmethod(interrupted)
try:
    table.put(empty)
except KeyboardInterrupt:
    print("interrupted")
table.put(empty)
print("called")
"""


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_it_arrives_once_the_kernel_is_whole(cache: str, tmp_path: Path) -> None:
    if cache == "warm":
        python("-c", INTERRUPTED, NUMBA_CACHE_DIR=str(tmp_path))
    done = python("-c", INTERRUPTED, NUMBA_CACHE_DIR=str(tmp_path))
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["interrupted", "called"], "")


DRAWN = (
    f"tests/scenarios/test_drawn.py::test_{name}"
    for name in (
        "random_logs_are_left_as_by_the_plain_cleaner",
        "logs_cleaned_from_anywhere_are_left_as_by_the_plain_cleaner",
        "buffers_of_any_size_give_the_same",
    )
)


@pytest.mark.slow
def test_kernels_stay_within_their_arrays() -> None:
    # the tests of this module are about the compiler itself, which the mode changes
    tests = (f"--ignore={__file__}", "tests/kernels", *DRAWN)
    done = python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(BOUNDS_CHECKED)
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
