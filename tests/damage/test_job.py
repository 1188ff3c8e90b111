"""What the user of the command sees of one damaged log among valid ones; ``tests/commands/calls/damage.txt`` has more."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compaction.commands import compact
from compaction.config.request import CompactionRequest
from compaction.engine_choice import EngineChoice
from compaction.names import CLEANER_OFFSETS, HIGH_WATERMARKS
from compaction.run.compact import clean_logs
from tests.damage.valid_logs import NOW_MS, look_at, valid_log, write_log
from tests.executed import executed
from tests.local_passes import LocalPasses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from compaction.files.segment_file import Block
    from compaction.report import RunReport

TOPICS = ("aside", "damaged", "zeta")
OPTIONS = ("--set", "cleanup.policy=compact", "--set", "min.cleanable.dirty.ratio=0", "--as-of-ms", str(NOW_MS))
Run = Callable[[EngineChoice, CompactionRequest], "RunReport"]


def _locally(_: EngineChoice, request: CompactionRequest) -> RunReport:
    return clean_logs(LocalPasses, request)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    for topic in TOPICS:
        write_log(tmp_path / "data" / f"{topic}-0", valid_log("zstd").files)
    return tmp_path / "data"


def _run(log_dir: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The standard error lines of a run that does not change the damaged log and cleans the others."""
    before = {topic: look_at(log_dir / f"{topic}-0") for topic in TOPICS}
    assert executed(compact, ["--log-dir", str(log_dir), *OPTIONS], run) == 1
    after = {topic: look_at(log_dir / f"{topic}-0") for topic in TOPICS}
    assert after["damaged"] == before["damaged"]
    assert after["aside"] == after["zeta"] != before["aside"]
    checkpoint = (log_dir / CLEANER_OFFSETS).read_text().splitlines()
    assert checkpoint[2:] == ["aside 0 40", "zeta 0 40"]
    return capsys.readouterr().err.splitlines()


@pytest.mark.spark
def test_on_spark_the_error_names_the_same_log_file_and_position(
    log_dir: Path, capsys: pytest.CaptureFixture[str], spark: SparkSession
) -> None:
    def on_spark(_: EngineChoice, request: CompactionRequest) -> RunReport:
        from compaction.engines.spark import SparkEngine

        return clean_logs(lambda: SparkEngine(spark.sparkContext), request)

    path = log_dir / "damaged-0" / valid_log("zstd").log(0)
    data = path.read_bytes()
    path.write_bytes(data[:200] + bytes([data[200] ^ 0x10]) + data[201:])
    lines = [line for line in _run(log_dir, on_spark, capsys) if line.startswith("error")]
    assert len(lines) == 1
    assert re.search(rf"{path} at byte \d+: batch fails its CRC", lines[0])


def test_a_huge_checkpoint_is_one_line_for_each_log_of_its_directory_and_the_others_are_cleaned(
    log_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    write_log(other / "elsewhere-0", valid_log("zstd").files)
    with (other / HIGH_WATERMARKS).open("wb") as file:
        file.truncate(1 << 40)
    assert executed(compact, ["--log-dir", str(log_dir), str(other), *OPTIONS], _locally) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: elsewhere-0: {other / HIGH_WATERMARKS}: is larger than 64 MiB, the limit for such files")
    assert (log_dir / CLEANER_OFFSETS).read_text().splitlines()[1] == "3"


def test_huge_snapshots_and_indexes_are_rebuilt(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for suffix in (".snapshot", ".txnindex"):
        with (log_dir / "damaged-0" / valid_log("zstd").log(1)).with_suffix(suffix).open("wb") as file:
            file.truncate(1 << 40)
    assert executed(compact, ["--log-dir", str(log_dir), *OPTIONS], _locally) == 0
    assert capsys.readouterr().err == ""
    assert (log_dir / CLEANER_OFFSETS).read_text().splitlines()[1] == "3"


def test_an_unexpected_exception_is_one_logs_failure(
    log_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect of the program that affects one log does not stop the others."""
    from compaction.passes import scan
    from compaction.passes.decoder import check_offsets

    def defect(block: Block, floor: int, end_offset: int) -> int:
        if "damaged" in block.path:
            raise IndexError("index 7 is out of bounds")
        return check_offsets(block, floor, end_offset)

    monkeypatch.setattr(scan, "check_offsets", defect)
    lines = _run(log_dir, _locally, capsys)
    path = log_dir / "damaged-0" / valid_log("zstd").log(0)
    what = "unforeseen failure (IndexError: index 7 is out of bounds); nothing was changed"
    assert lines == [f"error: damaged-0: {path} at byte 0: {what}"]
