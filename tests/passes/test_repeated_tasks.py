"""An engine may repeat any task at any time, and the second attempt can end otherwise than the first: what places have of it is
not mixed with what the driver has of the first one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest

import compaction
from compaction.engine import Job, Reading
from compaction.errors import CorruptLogError
from compaction.passes.merge import accepted_entries
from compaction.run import offset_maps, sizing
from tests.golden import unpack_sample
from tests.local_passes import LocalPasses
from tests.passes.repeated_tasks import (
    ALL,
    AS_OF_MS,
    COMMANDS,
    LOG,
    RepeatedPasses,
    compact_copy,
    count,
    digests,
    errors_in,
    over_time,
    policies,
    reads_fail,
    running_on,
    verify,
    without_times,
)

T = TypeVar("T")
R = TypeVar("R")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_repeated_task_whose_read_fails_fails_its_log_alone(
    tmp_path: Path, command: Callable[[Path], dict[str, Any]]
) -> None:
    log_dir, found, repeated = unpack_sample(tmp_path), list[str](), 0
    source = digests(log_dir)
    # with these, some places of each command have items of second attempts, and the driver has results of first ones
    for seed in (2, 3):
        with running_on(RepeatedPasses(partial(reads_fail, after=2), seed)):
            result = command(log_dir)
        found += errors_in(result)
        repeated += sum("repeated task" in error for error in errors_in(result))
        assert result.get("files", source).get(LOG, source[LOG]) == source[LOG]
    assert repeated
    assert all(f"{LOG}/" in error for error in found)


@pytest.mark.parametrize("command", [count, over_time, policies, verify])
def test_a_repeated_task_that_reads_the_same_changes_nothing(tmp_path: Path, command: Callable[[Path], dict[str, Any]]) -> None:
    log_dir = unpack_sample(tmp_path)
    with running_on(LocalPasses()):
        once = command(log_dir)
    with running_on(RepeatedPasses(nullcontext, 0)):
        assert without_times(command(log_dir)) == without_times(once)


def test_keys_that_were_collected_in_part_are_not_used(tmp_path: Path) -> None:
    """Without a dirty key, its records of the clean section would be retained."""

    class Collecting(LocalPasses):
        def run(self, job: Job, source: Any, work: Callable[..., R]) -> list[R]:
            with reads_fail() if job.name == "keys" else nullcontext():
                return super().run(job, source, work)

    log_dir = unpack_sample(tmp_path)
    compaction.compact(log_dir, engine="local", settings=ALL["settings"], as_of=AS_OF_MS)
    all_keys = patch.multiple(sizing, _KEY_FILTER_MIN_CLEAN_BYTES=1), patch.multiple(offset_maps, _KEY_FILTER_CLEAN_RATIO=0)
    with running_on(Collecting()), all_keys[0], all_keys[1]:
        logs = {f"{log['topic']}-{log['partition']}": log for log in compact_copy(log_dir)["logs"]}
    assert logs[LOG]["status"] == "failed"
    assert "Input/output error" in logs[LOG]["reason"]


def reading(digest: int, items: int, error: str | None = None) -> Reading:
    return Reading(1, digest, items, "/logs/t-0/0.log", error)


ACCEPTED = reading(1, 0) + reading(2, 0)


@pytest.mark.parametrize(
    ("shard", "problem"),
    [
        ([reading(1, 2), "a", "b"], "results of 1 tasks, expected those of 2"),
        ([reading(1, 1), "a", reading(2, 0), reading(2, 0)], "results of 3 tasks, expected those of 2"),
        ([reading(1, 1), "a", reading(3, 1), "b"], "a repeated task read other batches than before"),
        ([reading(1, 1), "a", reading(3, 0, "/logs/t-0/0.log: EIO")], "a repeated task failed: /logs/t-0/0.log: EIO"),
        ([reading(1, 1), reading(2, 1), "b"], "a map shard has 1 arrays of entries, expected 2"),
        (["a"], "results of 0 tasks, expected those of 2"),
    ],
    ids=["missing", "twice", "other", "failed", "without entries", "none"],
)
def test_a_shard_of_other_readings_is_refused(shard: list[Any], problem: str) -> None:
    assert accepted_entries([reading(2, 1), "b", reading(1, 1), "a"], ACCEPTED) == ["b", "a"]
    with pytest.raises(CorruptLogError, match=problem):
        accepted_entries(shard, ACCEPTED)
