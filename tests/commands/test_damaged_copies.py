"""``compact --since`` with a damaged previous copy: of each kind of file, by each kind of damage, clean and unclean sources."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compaction.output.finished import FINISHED
from tests.commands.test_since import run, tree
from tests.damage.copied_files import DAMAGES, damage, record_count
from tests.golden import unpack_sample

LOG = "payments-0"
#: files of a log that are taken over, and checkpoints; the bytes of the others are those of the source
TAKEN = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", "cleaner-offset-checkpoint")
#: several segments are cleaned segments of the copy
SMALL = ("--set", "internal.segment.bytes=5500")
OTHERS = ("leader-epoch-checkpoint", "partition.metadata", "replication-offset-checkpoint")


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
