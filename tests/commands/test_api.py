"""The Python API: each function's example, its results and their commands' equality; a call leaves its process as it was."""

from __future__ import annotations

import doctest
import gc
import inspect
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
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import compaction
from compaction.cli.console import load, main
from compaction.cli.parser import Parser
from compaction.commands import compact as compact_command
from compaction.engine_choice import choose
from compaction.options import inputs
from compaction.options.table import LOCAL
from compaction.options.values import pairs
from tests.kafka.encode import Batch, Record
from tests.local_passes import LocalPasses
from tests.processes import output_of

_AS_OF = datetime(2026, 11, 24, 2, tzinfo=timezone.utc)
_AS_OF_MS = int(_AS_OF.timestamp()) * 1000
_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
#: not a name of the command
_COMMANDS = {"count": "count", "dump": "dump-log", "dry_run": "dry-run"}
FUNCTIONS = [name for name in compaction.__all__ if inspect.isfunction(getattr(compaction, name))]


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples name no time: what has expired would depend on the day of the test."""
    monkeypatch.setattr(inputs, "time", SimpleNamespace(time_ns=lambda: _AS_OF_MS * 1_000_000))


def write_log(log_dir: Path, value: bytes = b"value") -> Path:
    """Writes two segments of ``orders-0`` with keys a, b and c; returns the log directory."""
    log = log_dir / "orders-0"
    log.mkdir(parents=True)
    for base, keys in ((0, b"abab"), (4, b"ac")):
        records = [Record(base + n, _AS_OF_MS - 10_000 + n, bytes([key]), value) for n, key in enumerate(keys)]
        (log / f"{base:020d}.log").write_bytes(Batch(records).encode())
    return log_dir


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return write_log(tmp_path / "logs")


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "read"])
def test_the_example_of_a_function_is_true(name: str, log_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    compaction.compact(log_dir, output_dir=copy, settings=_COMPACT)
    examine(name, {"log_dir": log_dir, "copy": copy})


def examine(name: str, names: dict[str, Any]) -> None:
    function = getattr(compaction, name)
    (test,) = doctest.DocTestFinder(recurse=False).find(function, name, globs={"compaction": compaction, **names})
    assert test.examples
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    assert runner.run(test).failed == 0


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("read", "read_arrow", "dump")])
def test_the_parameters_of_a_function_are_the_options_of_its_command(name: str) -> None:
    actions = [action for action in Parser(load(_COMMANDS.get(name, name)).OPTIONS)._actions if "help" not in action.dest]
    options = {action.dest: action.default for action in actions}
    own = {"report", "metrics", "html", "output", "all", "quiet", "verbose", "log_format", "why", "explain"}
    parameters = inspect.signature(getattr(compaction, name)).parameters
    assert set(options) - own - ({"strict"} if name == "dry_run" else set()) == set(parameters) - {"spark"}
    given = {dest: options[dest] for dest in parameters if dest in options}
    assert {dest for dest in given if given[dest] and given[dest] != parameters[dest].default} == set()


def test_a_call_and_its_command_line_have_the_same_result(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = compaction.compact(log_dir, settings=_COMPACT, topics="orders", as_of=_AS_OF, dry_run=True)
    options = ["--set", *pairs(_COMPACT), "--topic", "orders", "--as-of-ms", str(_AS_OF_MS), "--dry-run"]
    assert main(["compact", "--log-dir", str(log_dir), *options, "--output", "json"]) == 0
    called, told = json.loads(report.to_json()), json.loads(capsys.readouterr().out)
    assert called["options"]["--topic"] == {"value": ["orders"], "source": "call"}
    assert told["options"]["--topic"] == {"value": ["orders"], "source": "command line"}
    assert set(called["options"]) <= set(told["options"])
    for each in (called, told):
        del each["options"], each["run_id"], each["totals"]["seconds"], each["logs"][0]["seconds"], each["waves"][0]["seconds"]
        del each["logs"][0]["task_seconds"]
    assert called == told
    assert called["engine"] == {"name": LOCAL, "reason": "no Spark was configured"}


def test_a_result_is_text_json_and_a_table(log_dir: Path) -> None:
    report = compaction.compact(log_dir, settings=_COMPACT, as_of=_AS_OF_MS)
    assert "1 log: 1 cleaned; " in str(report)
    assert max(map(len, str(report).splitlines())) <= 80
    assert compaction.doctor(log_dir, quick=True)._repr_html_().startswith("<pre>")
    assert json.loads(report.to_json()) == json.loads(json.dumps(report.to_dict()))
    (row,) = report.to_arrow().to_pylist()
    assert (row["topic"], row["removed_records"], json.loads(row["settings"])) == ("orders", 2, report.logs[0].settings)
    assert report.to_pandas().removed_records.tolist() == [2]


def test_a_table_without_pandas_is_an_error_with_a_remedy(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(compaction.UsageError, match="needs pandas"):
        compaction.count(log_dir).to_pandas()


def test_all_results_can_be_shown(log_dir: Path) -> None:
    comparison = compaction.dry_run(log_dir, policies=[{"cleanup.policy": ["compact", "delete"], "retention.ms": "3d"}])
    assert comparison.policies == ("cleanup.policy=[compact,delete],retention.ms=3d",)
    assert comparison._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    for result in (
        comparison,
        compaction.expire(log_dir, dry_run=True, assume_default_policy=True),
        compaction.count(log_dir),
        compaction.doctor(log_dir, quick=True),
        compaction.dump(log_dir / "orders-0", output="jsonl"),
    ):
        assert str(result)
        assert json.loads(json.dumps(result.to_dict()))
        assert result.to_arrow().num_rows == len(result.rows()) > 0


def test_a_dump_as_text_has_no_rows(log_dir: Path) -> None:
    dumped = compaction.dump([log_dir / "orders-0"], print_data_log=True)
    assert (dumped.valid, dumped.exit_code) == (True, 0)
    assert dumped.findings[0].startswith("Non-consecutive offsets in ")
    assert "payload: value" in str(dumped)
    with pytest.raises(compaction.UsageError, match="the dump is text"):
        dumped.rows()


def test_a_copy_that_was_made_before_is_told(log_dir: Path, tmp_path: Path) -> None:
    def copied() -> compaction.RunReport:
        return compaction.compact(
            log_dir, output_dir=tmp_path / "copy", settings=_COMPACT, as_of="2026-11-24T02:00Z", if_done="skip", verify=True
        )

    first, second = copied(), copied()
    assert (first.done_before, second.done_before) == ("", str(tmp_path / "copy"))
    assert second.summary() == f"{tmp_path}/copy: done already by the same request; nothing was written"
    assert [each.exit_code for each in (*first.verified, *second.verified)] == [0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"as_of": "2026-11-24T02:00"}, "as_of: '2026-11-24T02:00' has no offset from UTC"),
        ({"as_of": 5}, "as_of: '5' is a time before the year 2000"),
        ({"as_of": 1.5}, "as_of: '1.5' is not a time such as"),
        ({"as_of": _AS_OF.replace(tzinfo=None)}, "as_of: '2026-11-24T02:00:00' has no offset from UTC"),
        ({"engine": "dask"}, "engine: 'dask' is not one of auto, local, spark"),
        ({"engine": "local", "spark": object()}, "a session is given for the local engine"),
        ({"settings": {"cleanup.polic": "compact"}}, "cleanup.polic"),
        ({"topics": ["("]}, "topics '(' is not a regular expression"),
        ({"output_dir": ""}, "output_dir: the path is empty; give a directory or a URI"),
        ({"replace": True}, "replace and if_done need output_dir; see help(compaction.compact)"),
    ],
)
def test_a_wrong_call_is_a_usage_error(log_dir: Path, options: dict[str, Any], message: str) -> None:
    before = sorted(log_dir.rglob("*"))
    with pytest.raises(compaction.UsageError) as found:
        compaction.compact(log_dir, **options)
    assert message in str(found.value)
    assert sorted(log_dir.rglob("*")) == before


def test_a_directory_that_is_missing_is_a_usage_error(tmp_path: Path) -> None:
    for function in (compaction.compact, compaction.expire, compaction.count, compaction.dry_run, compaction.doctor):
        with pytest.raises(compaction.UsageError, match="no such"):
            function(tmp_path / "gone")


def test_a_call_ends_what_it_started(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    engine = choose(LOCAL, "compact")
    monkeypatch.setattr(type(engine), "close", lambda self: closed.append(self.command))
    monkeypatch.setattr(type(engine), "passes", lambda self, progress=None: LocalPasses)
    compaction.compact(log_dir, settings=_COMPACT, dry_run=True)
    assert closed == ["compact"]
    assert compact_command.main(["--log-dir", str(log_dir), "--dry-run", "--quiet"]) == 0
    assert closed == ["compact"]


def test_importing_the_package_imports_nothing_else() -> None:
    program = "import sys, compaction; print(sorted(name for name in sys.modules if name.startswith(('compaction.', 'numpy'))))"
    assert output_of([sys.executable, "-c", program]) == "[]\n"


COMPACT = {**_COMPACT, "file.delete.delay.ms": 0}
DELETE = {"cleanup.policy": "delete", "retention.ms": "1s", "file.delete.delay.ms": 0}


#: a call of each function, given a log directory and one that does not exist
CALLS: dict[str, Callable[[Path, Path], object]] = {
    "compact": lambda log, out: compaction.compact(log, output_dir=out, settings=COMPACT, as_of=_AS_OF),
    "compact in place": lambda log, out: compaction.compact(log, settings=COMPACT, as_of=_AS_OF),
    "expire": lambda log, out: compaction.expire(log, output_dir=out, settings=DELETE, as_of=_AS_OF),
    "erase": lambda log, out: compaction.erase(log, where=["prefix=a"], output_dir=out, include_active=True, as_of=_AS_OF),
    "dry_run": lambda log, out: compaction.dry_run(log, policies=["configured"], settings=COMPACT, as_of=_AS_OF),
    "verify": lambda log, out: compaction.verify(before=log, after=shutil.copytree(log, out), as_of=_AS_OF, settings=COMPACT),
    "count": lambda log, out: compaction.count(log, top=1),
    "count bytes": lambda log, out: compaction.count(log, stored=True, as_of=_AS_OF),
    "dump": lambda log, out: compaction.dump(files=sorted(log.glob("*/*.log")), print_data_log=True),
    "doctor": lambda log, out: compaction.doctor(log),
    "read_arrow": lambda log, out: compaction.read_arrow(log, view="latest").read_all(),
    "read_arrow left": lambda log, out: compaction.read_arrow(log).read_next_batch(),
    "an error": lambda log, out: pytest.raises(compaction.UsageError, compaction.compact, log, settings={"no": "such"}),
}  # fmt: skip


def test_the_api_is_what_all_names_and_each_function_is_called_here() -> None:
    assert sorted(FUNCTIONS) == "compact count doctor dry_run dump erase expire read read_arrow verify".split()
    assert {*FUNCTIONS} - {"read"} == {name.split()[0] for name in CALLS} - {"an"}
    assert all(getattr(compaction, name).__doc__ for name in compaction.__all__)
    assert set(compaction.__all__) <= set(dir(compaction))
    with pytest.raises(AttributeError, match="no attribute 'compress'"):
        compaction.compress  # noqa: B018


def state() -> dict[str, Any]:
    """What a call could change in this process."""
    umask = os.umask(0o22)
    os.umask(umask)
    own = Path("/proc/self")
    return {
        "children": [children for task in own.glob("task/*") if (children := _said(task / "children"))],
        "threads": sorted(name for task in own.glob("task/*") if (name := _said(task / "comm"))),
        "descriptors": sorted(_said(entry) for entry in own.glob("fd/*")),
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


def _said(entry: Path) -> str:
    """What an entry of a process says, or the target of one that is a link; empty for one that has just ended."""
    try:
        return str(entry.readlink()) if entry.is_symlink() else entry.read_text()
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
    # what a first call imports stays; a library's pool of threads gets those that it lacks whenever it has work for them: not
    # in each call
    for number in range(4):
        before = state()
        CALLS[name](shutil.copytree(log_dir, tmp_path / f"log-{number}"), tmp_path / f"out-{number}")
        after = state()
        differing = [key for key in before if before[key] != after[key]]
        if not differing or (number and differing != ["threads"]):
            break
    assert differing == [], [(before[key], after[key]) for key in differing]


def test_thirty_calls_need_what_one_call_needs(log_dir: Path) -> None:
    """The results of tasks were appended to a file without a name, for the life of the process."""

    def memory() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def unnamed_bytes() -> int:
        return sum(entry.stat().st_size for entry in Path("/proc/self/fd").iterdir() if "(deleted)" in _said(entry))

    for _ in range(5):
        compaction.count(log_dir)
    before, unnamed = memory(), unnamed_bytes()
    for _ in range(25):
        compaction.count(log_dir)
    assert unnamed_bytes() == unnamed
    assert memory() - before < 8 << 20


def compacted_in_threads(*log_dirs: Path) -> list[object]:
    """The exit codes of calls in threads of their own, or what they raise."""
    with ThreadPoolExecutor(len(log_dirs)) as pool:
        calls = [pool.submit(compaction.compact, each, settings=COMPACT, as_of=_AS_OF) for each in log_dirs]
        return [call.exception() or call.result().exit_code for call in calls]


def test_calls_of_three_threads_are_those_of_one(tmp_path: Path) -> None:
    """Threads would append to one file, at positions that they read without a lock."""
    expected: dict[str, bytes] = {}
    for name in "abc":
        write_log(tmp_path / name, name.encode())
        alone = shutil.copytree(tmp_path / name, tmp_path / f"alone-{name}")
        compaction.compact(alone, settings=COMPACT, as_of=_AS_OF)
        expected[name] = _bytes(alone)
    for number in range(10):
        copies = {name: shutil.copytree(tmp_path / name, tmp_path / f"{name}-{number}") for name in "abc"}
        assert compacted_in_threads(*copies.values()) == [0, 0, 0]
        assert {name: _bytes(copy) for name, copy in copies.items()} == expected


def _bytes(log_dir: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(log_dir.glob("orders-0/*.log")))


def test_one_directory_is_changed_by_one_thread_at_a_time(log_dir: Path) -> None:
    results = compacted_in_threads(*[log_dir] * 4)
    assert 0 in results
    others = [each for each in results if each != 0]
    assert all(isinstance(each, compaction.UsageError) and "in use: process" in str(each) for each in others), others


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
