"""``compact --since`` as a user calls it: which calls are refused, what is repeated, what is printed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import compaction
from compaction.commands import compact
from compaction.config.request import CompactionRequest
from compaction.files import local_output
from compaction.output import segment_writer
from compaction.output.publish import LocalTarget
from compaction.run.compact import clean_logs
from compaction.run_report import RunReport
from tests.executed import executed
from tests.golden import unpack_sample
from tests.local_passes import LocalPasses

OPTIONS = ("--set", "cleanup.policy=compact", "min.cleanable.dirty.ratio=0")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of the sample logs; no test changes them."""
    return unpack_sample(tmp_path_factory.mktemp("sample"), "__cluster_metadata-0", "orders-0", "orders-1", "inventory-0")


def run(logs: Path, target: Path, day: int, *options: object) -> int:
    """The copy of a day, without Spark."""

    def cleaned(_: object, request: CompactionRequest) -> RunReport:
        return clean_logs(LocalPasses, request)

    argv = ["--log-dir", logs, "--output-dir", target, "--as-of", f"2027-01-{day:02}T00:00Z", *OPTIONS, *options]
    return executed(compact, [str(each) for each in argv], cleaned)


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_two_slots_continue_each_other(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    even, odd, report = tmp_path / "even", tmp_path / "odd", tmp_path / "report.json"
    repeated = ("--if-done", "skip", "--replace", "--report", report)
    assert run(logs, even, 2, *repeated) == 0
    for day, (target, since) in enumerate(((odd, even), (even, odd), (odd, even)), 3):
        capsys.readouterr()
        assert run(logs, target, day, "--since", since, "--verify", *repeated) == 0
        assert "since the previous copy: 3 unchanged; " in capsys.readouterr().out
        document = json.loads(report.read_text())
        assert {log["since"] for log in document["logs"]} == {"unchanged"} and document["totals"]["previous_bytes"] > 0
        # the same slot again
        before = tree(target)
        assert run(logs, target, day, "--since", since, *repeated) == 0
        assert "done already by the same request" in capsys.readouterr().out and tree(target) == before
    # it is not the result of a copy in full, or of one that continues another
    assert run(logs, odd, 5, "--if-done", "skip") == 2
    assert "--output-dir has the output of another request: it differs in since" in capsys.readouterr().err


def test_a_copy_in_full_is_named_with_its_reason(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = shutil.copytree(logs, tmp_path / "kafka")
    assert run(source, tmp_path / "first", 2, "--if-done", "skip") == 0
    (source / "orders-0" / f"{0:020d}.log").touch()
    capsys.readouterr()
    assert run(source, tmp_path / "second", 3, "--since", tmp_path / "first", "--verbose") == 0
    printed = capsys.readouterr().out
    assert "since the previous copy: 2 unchanged, 1 copied in full; " in printed
    assert "copied in full: orders-0: segment 0 has changed" in printed
    assert "    copied in full: segment 0 has changed" in printed


def test_wrong_calls_are_refused(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, target = tmp_path / "first", tmp_path / "new"
    (tmp_path / "empty").mkdir()
    assert run(logs, first, 2, "--if-done", "skip") == 0
    for options, told in (
        (("--since", target), f"--since overlaps {target}"),
        (("--since", target / "inside"), f"--since overlaps {target}"),
        (("--since", tmp_path), f"--since overlaps {target}"),
        (("--since", logs), f"--since overlaps {logs}"),
        (("--since", first, "--dry-run"), "--since needs --output-dir, and no --dry-run"),
        (("--since", first, "--output-layout", "local-tiered"), "--output-layout"),
        (("--since", "s3://bucket/first"), "--since and --output-dir must both be on disks, or both in stores"),
        (("--since", tmp_path / "nothing"), "/nothing: --since: no such directory; name the output of an earlier run"),
        (("--since", tmp_path / "empty"), "this directory has no _finished.json"),
    ):
        capsys.readouterr()
        assert run(logs, target, 3, *options) == 2
        assert told in capsys.readouterr().err
        assert not target.exists()
    with pytest.raises(compaction.UsageError, match="since needs output_dir"):
        compaction.compact(logs, since=first, settings={"cleanup.policy": "compact"})


def test_shared_blocks_are_not_read_back(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert run(logs, first, 2, "--if-done", "skip") == 0
    shared = []

    def share(source: int, target: int) -> bool:
        data = Path(f"/proc/self/fd/{source}").read_bytes()
        shared.append(Path(f"/proc/self/fd/{target}").write_bytes(data))
        return True

    monkeypatch.setattr(local_output, "share_blocks", share)
    monkeypatch.setattr(segment_writer, "find_mismatch", lambda *_: pytest.fail("the bytes were not moved"))
    assert run(logs, second, 3, "--since", first) == 0
    assert shared
    names = {name for name in tree(first) if name.endswith((".log", ".index")) and "metadata" not in name}
    assert {name: tree(second)[name] for name in names} == {name: tree(first)[name] for name in names}
    times = [{name: (copy / name).stat().st_mtime_ns for name in names} for copy in (first, second)]
    assert times[0] == times[1]


@pytest.mark.parametrize("earlier", [False, True])
def test_a_copy_is_published_after_it_was_found_good(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    target = tmp_path / "copy"
    if earlier:
        assert run(logs, target, 2, "--replace") == 0
    before = tree(target)
    commit = LocalTarget.commit

    def damage(self: LocalTarget, *arguments: Any) -> None:
        """A disk that changes a byte after it was read back."""
        path = min(Path(self.place).glob("orders-0/*.log"))
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        commit(self, *arguments)

    monkeypatch.setattr(LocalTarget, "commit", damage)
    capsys.readouterr()
    assert run(logs, target, 3, "--replace", "--verify") == 1
    (error,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error"))
    assert "--verify: the copy was not published: orders-0:" in error
    assert tree(target) == before and target.exists() == earlier
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    monkeypatch.undo()
    assert run(logs, target, 3, "--replace", "--verify") == 0
    assert "3 logs: 3 hold (" in capsys.readouterr().out and tree(target) != before


def test_an_output_that_cannot_be_written_is_a_wrong_call(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(logs, Path("/proc/copies"), 2) == 2
    told = "error: /proc/copies: --output-dir: cannot make the directory: No such file or directory"
    assert capsys.readouterr().err == f"{told}; name a directory in one that can be written\n"
