"""``compact --since``: what is read back and published; damaged previous copies, by kind of file and of damage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from compaction.commands import compact
from compaction.files import local
from compaction.output import segment_writer
from compaction.output.finished import FINISHED
from compaction.output.publish import LocalTarget
from tests.damage.copied_files import DAMAGES, damage, record_count
from tests.golden import unpack_sample

OPTIONS = ("--set", "cleanup.policy=compact", "min.cleanable.dirty.ratio=0")
LOG = "payments-0"
#: files of a log that are taken over, and checkpoints; the bytes of the others are those of the source
TAKEN = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", "cleaner-offset-checkpoint")
#: several segments are cleaned segments of the copy
SMALL = ("--set", "internal.segment.bytes=5500")
OTHERS = ("leader-epoch-checkpoint", "partition.metadata", "replication-offset-checkpoint")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of the sample logs; no test changes them."""
    return unpack_sample(tmp_path_factory.mktemp("sample"), "__cluster_metadata-0", "orders-0", "orders-1", "inventory-0")


def run(logs: Path, target: Path, day: int, *options: object) -> int:
    """The copy of a day."""
    argv = ["--log-dir", logs, "--output-dir", target, "--as-of", f"2027-01-{day:02}T00:00Z", *OPTIONS, *options]
    return compact.main([str(each) for each in argv])


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_shared_blocks_are_not_read_back(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert run(logs, first, 2, "--if-done", "skip") == 0
    shared = []

    def share(source: int, target: int) -> bool:
        data = Path(f"/proc/self/fd/{source}").read_bytes()
        shared.append(Path(f"/proc/self/fd/{target}").write_bytes(data))
        return True

    monkeypatch.setattr(local, "share_blocks", share)
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


def files(copy: Path, kind: str) -> list[Path]:
    """The files of a kind, without those of the last segment, which are the source's except for its log."""
    if not kind.startswith("."):
        return [path for path in (copy / kind, copy / LOG / kind) if path.exists()]
    last = max((copy / LOG).glob("*.log")).stem
    return sorted(path for path in (copy / LOG).glob(f"*{kind}") if path.stem < last or kind == ".log")


@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_previous_copy_costs_no_record(tmp_path: Path, clean: bool, capsys: pytest.CaptureFixture[str]) -> None:
    source = unpack_sample(tmp_path / "source", "__cluster_metadata-0", LOG)
    if not clean:
        (source / ".kafka_cleanshutdown").unlink()
    first, plain, continued = tmp_path / "first", tmp_path / "plain", tmp_path / "continued"
    assert run(source, first, 2, "--if-done", "skip", *SMALL) == 0
    assert run(source, plain, 3, "--if-done", "skip", *SMALL) == 0
    assert run(source, continued, 3, "--since", first, *SMALL) == 0
    assert "1 unchanged" in capsys.readouterr().out
    expected = {"full": tree(plain), "unchanged": tree(continued)}
    for kind in (*TAKEN, *OTHERS):
        for how in DAMAGES if kind == ".log" else ["missing" if clean else "longer"]:
            damaged, target = tmp_path / "damaged", tmp_path / "next"
            shutil.copytree(first, damaged)
            path = files(damaged, kind)[-1]
            assert damage(path, how), (kind, how)
            capsys.readouterr()
            assert run(source, target, 3, "--since", damaged, "--verbose", *SMALL) == 0, (kind, how)
            since = "full" if kind in TAKEN else "unchanged"
            assert f"1 {'copied in full' if since == 'full' else since}" in capsys.readouterr().out, (kind, how)
            found = tree(target)
            assert {**found, FINISHED: b""} == {**expected[since], FINISHED: b""}, (kind, how)
            assert record_count(target) == record_count(plain)
            for copy in (damaged, target):
                shutil.rmtree(copy)
