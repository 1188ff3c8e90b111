"""``verify`` and ``compact --verify``: output, exit codes and wrong calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.commands import compact
from compaction.config.request import CompactionRequest
from compaction.engine_choice import EngineChoice
from compaction.run.compact import clean_logs
from compaction.run_report import RunReport
from tests.certifier.story import CONFIG, NOW_MS, Story, records
from tests.executed import executed
from tests.local_passes import LocalPasses

SETS = ["--set", *(f"{name}={value}" for name, value in CONFIG.items())]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story.cleaned(tmp_path)


def compacted(log_dir: Path, *options: object, during: Callable[[], None] = lambda: None) -> int:
    def run(_: EngineChoice, request: CompactionRequest) -> RunReport:
        report = clean_logs(LocalPasses, request)
        during()
        return report

    given = ["--log-dir", log_dir, "--as-of-ms", NOW_MS, "--allow-keyless", "--verify", *SETS, *options]
    return executed(compact, [str(each) for each in given], run)


def test_compact_ends_with_1_if_its_result_in_place_does_not_hold(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil() -> None:
        left = Story(tmp_path, story.before)
        left.change(left.offset_of("unique-2"), records(lambda found: found[1:]))

    assert compacted(story.before, during=spoil) == 1
    assert "record is missing though it is the last of its key" in capsys.readouterr().err
