"""Whether a directory is a finished output, of which request, and whether it still is what was written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.commands import compact, expire
from compaction.config.request import CompactionRequest
from compaction.output.finished import FINISHED, differences, hidden_name, read_finished
from compaction.run.compact import clean_logs
from compaction.run_report import RunReport
from tests.executed import executed
from tests.golden import unpack_sample
from tests.local_passes import LocalPasses

AS_OF = ("--as-of", "2027-01-01T00:00Z")
OPTIONS = ("--set", "cleanup.policy=compact", "min.cleanable.dirty.ratio=0", "--include-active")
SKIP, REPLACE = ("--if-done", "skip"), ("--replace",)
DONE = "done already by the same request; nothing was written"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of the sample logs."""
    return unpack_sample(tmp_path_factory.mktemp("sample"), "__cluster_metadata-0", "orders-0", "orders-1", "inventory-0")


@pytest.fixture
def logs(sample: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sample, tmp_path / sample.name)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run(logs: Path, target: Path, *options: object) -> int:
    """``compact`` without Spark."""

    def cleaned(_: object, request: CompactionRequest) -> RunReport:
        return clean_logs(LocalPasses, request)

    argv = ["--log-dir", logs, "--output-dir", target, *AS_OF, *OPTIONS, *options]
    return executed(compact, [str(each) for each in argv], cleaned)


def tree(path: Path) -> dict[str, tuple[bytes, int]]:
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): (file.read_bytes(), file.stat().st_ino) for file in files}


def beside(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir() if path.name.startswith(f".{target.name}."))


def test_a_repeated_task_ends_with_0_and_writes_nothing_but_a_missing_report(
    logs: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert run(logs, target, *SKIP, "--report", report) == 0
    first, written = tree(target), report.read_bytes()
    capsys.readouterr()
    assert run(logs, target, *SKIP, "--report", report) == 0
    assert capsys.readouterr().out == f"{target}: {DONE}\n"
    assert (tree(target), report.read_bytes()) == (first, written)
    # the first attempt was killed before it wrote its report, or the file is that of another slot
    for stale in (None, '{"as_of_ms": 5}'):
        report.unlink() if stale is None else report.write_text(stale)
        assert run(logs, target, *SKIP, "--report", report) == 0
        assert json.loads(report.read_text())["status"] == "nothing_to_do"


def test_outputs_without_these_options_have_no_record_and_are_neither_skipped_nor_replaced(
    logs: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(logs, target) == 0
    before = tree(target)
    assert FINISHED not in before
    for options, told in (
        ((), "exists and is not empty; name a new directory, or give --replace if it is an earlier output"),
        (SKIP, "exists and is not empty"),
        (REPLACE, f"this directory has no {FINISHED}: it is not an output of a run with --replace or --if-done"),
    ):
        assert run(logs, target, *options) == 2
        assert told in capsys.readouterr().err
    assert tree(target) == before


@pytest.mark.parametrize(
    ("options", "differing"),
    [
        (("--as-of", "2027-01-02T00:00Z"), "as_of_ms"),
        (("--set", "retention.ms=3d"), "set"),
        (("--topic", "orders"), "topic"),
        (("--allow-keyless",), "allow_keyless"),
        (("--kafka-version", "3.9.0"), "kafka_version"),
        (("--config", "more.toml"), "config"),
    ],
)
def test_the_output_of_another_request_is_not_taken_for_this_ones(
    logs: Path, target: Path, options: tuple[str, ...], differing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more.toml").write_text('[topics.x]\n"segment.bytes" = "64MiB"\n')
    given = [str(tmp_path / each) if each == "more.toml" else each for each in options]
    assert run(logs, target, *SKIP) == 0
    before = tree(target)
    # the other form of an option, and one that changes nothing, are the same request
    assert run(logs, target, *SKIP, "--verbose", "--as-of", "2027-01-01T01:00:00+01:00") == 0
    capsys.readouterr()
    assert run(logs, target, *SKIP, *given) == 2
    error = capsys.readouterr().err
    assert f"--output-dir has the output of another request: it differs in {differing}; name another directory" in error
    assert tree(target) == before
    assert run(logs, target, *SKIP, *REPLACE, *given) == 0
    assert tree(target) != before


def lose(target: Path) -> str:
    shutil.rmtree(target / "orders-1")
    return "orders-1/"


def cut(target: Path) -> str:
    file = max((target / "orders-0").glob("*.log"))
    file.write_bytes(file.read_bytes()[:-1])
    return f"orders-0/{file.name} has "


def turn(target: Path) -> str:
    file = max((target / "orders-0").glob("*.log"))
    data = bytearray(file.read_bytes())
    data[7] ^= 1
    file.write_bytes(data)
    return f"orders-0/{file.name} has other contents"


def add(target: Path) -> str:
    (target / "orders-0" / f"{9999:020d}.log").write_bytes(b"appended by a broker")
    return f"orders-0/{9999:020d}.log is new"


@pytest.mark.parametrize("harm", [lose, cut, turn, add])
def test_an_output_that_is_not_what_was_written_is_an_error(
    logs: Path, target: Path, harm: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(logs, target, *SKIP) == 0
    told = harm(target)
    before = tree(target)
    capsys.readouterr()
    assert run(logs, target, *SKIP) == 1
    error = capsys.readouterr().err
    assert "the finished output is not what was written: " in error
    assert told in error
    # it may be somebody's data
    assert run(logs, target, *SKIP, *REPLACE) == 2
    assert f"this output has changed since it was written: {told}" in capsys.readouterr().err
    assert tree(target) == before


def test_an_output_without_a_log_that_failed_is_not_complete(
    logs: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment = min((logs / "orders-1").glob("*.log"))
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-9])
    assert run(logs, target, *SKIP) == 1
    segment.write_bytes(whole)
    capsys.readouterr()
    assert run(logs, target, *SKIP) == 1
    assert "the finished output lacks 1 log, failed or new, the first is orders-1" in capsys.readouterr().err
    assert run(logs, target, *SKIP, *REPLACE) == 0
    assert (target / "orders-1").is_dir()
    assert run(logs, target, *SKIP) == 0


def test_a_finished_output_is_replaced_as_a_whole_and_nothing_is_left_beside_it(logs: Path, target: Path) -> None:
    assert run(logs, target, *REPLACE) == 0
    first = tree(target)
    assert run(logs, target, *REPLACE, "--topic", "orders") == 0
    second = tree(target)
    assert not second.items() & first.items()
    assert {name.partition("/")[0] for name in first} - {name.partition("/")[0] for name in second} == {"inventory-0"}
    assert beside(target) == []


def test_a_run_that_fails_keeps_the_earlier_output(logs: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(logs, target, *REPLACE) == 0
    before = tree(target)
    (logs / "recovery-point-offset-checkpoint").write_text("0\nx\n")
    assert run(logs, target, *REPLACE) == 1
    assert tree(target) == before
    assert beside(target) == []


def test_an_output_that_a_broker_uses_is_not_replaced(
    logs: Path, target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(logs, target, *REPLACE) == 0
    monkeypatch.setattr("compaction.files.lock.lock_holder", lambda path: "process 7 (java)" if path == str(target) else None)
    assert run(logs, target, *REPLACE) == 2
    assert f"{target}: --replace: process 7 (java) uses this output" in capsys.readouterr().err


def test_an_earlier_output_that_a_killed_run_was_replacing_is_restored(logs: Path, target: Path) -> None:
    assert run(logs, target, *SKIP) == 0
    first = tree(target)
    # between its two renames
    target.rename(hidden_name(str(target), ".replaced"))
    assert run(logs, target, *SKIP) == 0
    assert tree(target) == first
    # after both
    shutil.copytree(target, hidden_name(str(target), ".replaced"))
    assert run(logs, target, *SKIP) == 0
    assert (tree(target), beside(target)) == (first, [])


def test_an_output_is_not_a_part_of_its_copy(logs: Path, target: Path, tmp_path: Path) -> None:
    assert run(logs, target, *SKIP) == 0
    assert run(target, tmp_path / "again") == 0
    assert FINISHED not in tree(tmp_path / "again")
    assert read_finished(str(tmp_path / "again")) is None


def test_expired_copies_are_skipped_and_replaced_too(logs: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--log-dir", str(logs), "--output-dir", str(target), *AS_OF, "--set", "cleanup.policy=delete"]
    skipped = []
    for options in (SKIP, SKIP, REPLACE):
        assert expire.main([*argv, *options]) == 0
        skipped.append(DONE in capsys.readouterr().out)
    assert skipped == [False, True, False]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--replace"], "--replace and --if-done need --output-dir"),
        (["--if-done", "skip", "--as-of", "2027-01-01T00:00Z"], "--replace and --if-done need --output-dir"),
        (["--if-done", "skip", "--output-dir", "x"], "--if-done needs --as-of: without it each run has another time"),
        (["--if-done", "perhaps"], "argument --if-done: invalid choice: 'perhaps'"),
    ],
)
def test_options_that_contradict_each_other_are_usage_errors(
    logs: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compact.main(["--log-dir", str(logs), *argv]) == 2
    assert message in capsys.readouterr().err


def test_requests_are_compared_by_what_they_say() -> None:
    assert differences({"a": 1, "b": [2]}, {"a": 1, "b": [2]}) == []
    assert differences({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == ["b", "c"]
    assert differences(None, {"a": 1}) != []
