"""A call of the Python API leaves its process as it was, and calls do not notice each other."""

from __future__ import annotations

import gc
import json
import locale
import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import compaction
from tests.kafka.encode import Batch, Record

AS_OF = "2026-11-24T02:00Z"
_MS = 1_760_000_000_000
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "file.delete.delay.ms": 0}
DELETE = {"cleanup.policy": "delete", "retention.ms": "3d", "file.delete.delay.ms": 0}


def write_log(log_dir: Path, value: bytes = b"value") -> Path:
    """Writes two segments of ``orders-0`` with keys a, b and c; returns the log directory."""
    log = log_dir / "orders-0"
    log.mkdir(parents=True)
    for base, keys in ((0, b"abab"), (4, b"ac")):
        records = [Record(base + n, _MS + n, bytes([key]), b"%s-%d" % (value, base + n)) for n, key in enumerate(keys)]
        (log / f"{base:020d}.log").write_bytes(Batch(records).encode())
    return log_dir


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return write_log(tmp_path / "logs")


#: a call of each function, given a log directory and one that does not exist
CALLS: dict[str, Callable[[Path, Path], object]] = {
    "compact": lambda log, out: compaction.compact(log, output_dir=out, settings=COMPACT, as_of=AS_OF),
    "compact in place": lambda log, out: compaction.compact(log, settings=COMPACT, as_of=AS_OF),
    "expire": lambda log, out: compaction.expire(log, output_dir=out, settings=DELETE, as_of=AS_OF),
    "erase": lambda log, out: compaction.erase(log, where=["prefix=a"], output_dir=out, include_active=True, as_of=AS_OF),
    "dry_run": lambda log, out: compaction.dry_run(log, policies=["configured"], settings=COMPACT, as_of=AS_OF),
    "verify": lambda log, out: compaction.verify(before=log, after=shutil.copytree(log, out), as_of=AS_OF, settings=COMPACT),
    "count": lambda log, out: compaction.count(log, top=1),
    "count bytes": lambda log, out: compaction.count(log, stored=True, as_of=AS_OF),
    "dump": lambda log, out: compaction.dump(files=sorted(log.glob("*/*.log")), print_data_log=True),
    "doctor": lambda log, out: compaction.doctor(log),
    "read_arrow": lambda log, out: compaction.read_arrow(log, view="latest").read_all(),
    "read_arrow left": lambda log, out: compaction.read_arrow(log).read_next_batch(),
    "an error": lambda log, out: pytest.raises(compaction.UsageError, compaction.compact, log, settings={"no": "such"}),
}  # fmt: skip


def test_each_function_of_the_api_is_called_here() -> None:
    functions = {name for name in compaction.__all__ if callable(getattr(compaction, name)) and name.islower()}
    assert functions - {"read"} == {name.split()[0] for name in CALLS} - {"an"}


def state() -> dict[str, Any]:
    """What a call could change in this process."""
    umask = os.umask(0o22)
    os.umask(umask)
    own = Path("/proc/self")
    return {
        "children": [task.read_text() for task in own.glob("task/*/children") if task.read_text()],
        "threads": sorted((p / "comm").read_text() for p in own.glob("task/*")),
        "descriptors": sorted(_target(entry) for entry in own.glob("fd/*")),
        "handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "environment": dict(os.environ),
        "limits": [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")],
        "priority": os.nice(0),
        "warnings": list(warnings.filters),
        "locale": locale.setlocale(locale.LC_ALL),
        "directory": str(Path.cwd()),
        "umask": umask,
        "temporary directory": (tempfile.tempdir, sorted(os.listdir(tempfile.gettempdir()))),  # noqa: PTH208
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.path[:], sys.getrecursionlimit()),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "logging": (logging.root.level, logging.root.handlers[:], logging.root.manager.disable),
    }


def _target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""


@pytest.fixture
def quiet_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A temporary directory that no other process uses."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", str(place))
    yield


@pytest.mark.parametrize("workers", [False, True], ids=["inline", "in workers"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.usefixtures("quiet_tmp")
def test_a_call_leaves_its_process_as_it_was(
    name: str, workers: bool, log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if workers:
        monkeypatch.setattr("compaction.engines.local.INLINE_BYTES", 0)
    # what the first call imports stays
    CALLS[name](shutil.copytree(log_dir, tmp_path / "first"), tmp_path / "out")
    before = state()
    CALLS[name](log_dir, tmp_path / "out2")
    after = state()
    assert {key for key in before if before[key] != after[key]} == set(), [
        (before[key], after[key]) for key in before if before[key] != after[key]
    ]


def test_thirty_calls_need_what_one_call_needs(log_dir: Path) -> None:
    """The results of tasks were appended to a file without a name, for the life of the process."""

    def memory() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def unnamed_bytes() -> int:
        return sum(entry.stat().st_size for entry in Path("/proc/self/fd").iterdir() if "(deleted)" in _target(entry))

    for _ in range(5):
        compaction.count(log_dir)
    before, unnamed = memory(), unnamed_bytes()
    for _ in range(25):
        compaction.count(log_dir)
    assert unnamed_bytes() == unnamed
    assert memory() - before < 8 << 20


def test_calls_of_three_threads_are_those_of_one(tmp_path: Path) -> None:
    """Threads would append to one file, at positions that they read without a lock."""
    expected: dict[str, bytes] = {}
    found: list[tuple[str, bytes]] = []
    errors: list[BaseException] = []
    for name in "abc":
        write_log(tmp_path / name, name.encode())
        alone = shutil.copytree(tmp_path / name, tmp_path / f"alone-{name}")
        compaction.compact(alone, settings=COMPACT, as_of=AS_OF)
        expected[name] = _bytes(alone)

    def run(name: str, number: int) -> None:
        copy = shutil.copytree(tmp_path / name, tmp_path / f"{name}-{number}")
        try:
            assert compaction.compact(copy, settings=COMPACT, as_of=AS_OF).exit_code == 0
            found.append((name, _bytes(copy)))
        except BaseException as error:  # noqa: BLE001 - reported by the test
            errors.append(error)

    for number in range(10):
        threads = [threading.Thread(target=run, args=(name, number)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert len(found) == 30
    assert all(data == expected[name] for name, data in found)


def _bytes(log_dir: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(log_dir.glob("orders-0/*.log")))


def test_one_directory_is_changed_by_one_thread_at_a_time(log_dir: Path) -> None:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(compaction.compact(log_dir, settings=COMPACT, as_of=AS_OF).exit_code)
        except compaction.UsageError as error:
            results.append(error.message)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 in results
    assert all(result == 0 or "in use: process" in str(result) for result in results), results


def test_a_fork_has_buffers_of_its_own() -> None:
    """Those of its parent are shared memory."""
    from compaction.files.contents import borrow_buffer, return_buffer

    buffer = borrow_buffer()
    buffer[0] = 1
    return_buffer(buffer)
    if (child := os.fork()) == 0:
        borrow_buffer()[0] = 2
        os._exit(0)
    os.waitpid(child, 0)
    assert buffer[0] == 1


def test_json_documents_are_equal_after_a_fork(log_dir: Path) -> None:
    document = json.dumps(compaction.count(log_dir).to_dict()["topics"])
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writer, json.dumps(compaction.count(log_dir).to_dict()["topics"]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as answer:
        assert answer.read() == document
