"""The command line of the delete policy, from a broker's properties to the exit code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compaction.commands import expire
from compaction.files.local import FreeSpace
from compaction.run import waves
from tests.golden import unpack_sample

DELETE = ("--set", "cleanup.policy=delete")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return unpack_sample(tmp_path)


def test_a_copy_that_does_not_fit_is_refused_with_figures(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waves, "free_space", lambda path: FreeSpace(1, (4 << 20) + 5000, 0))
    assert expire.main(["--log-dir", str(logs), *DELETE, "--output-dir", str(tmp_path / "out")]) == 1
    assert re.fullmatch(
        rf"error: {tmp_path}/out: the copy takes [\d.]+ [kM]B, 5\.0 kB are free besides a margin of 4\.2 MB for"
        r" checkpoints and journals; free some space and run again; nothing was written\n",
        capsys.readouterr().err,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [logs.name]
