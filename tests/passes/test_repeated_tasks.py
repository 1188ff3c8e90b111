"""An engine may repeat any task at any time, and the second attempt can end otherwise than the first: what places have of it is
not mixed with what the driver has of the first one."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

import compaction
from compaction.api.engine_choice import Engine
from compaction.errors import CorruptLogError
from compaction.passes.merge import accepted_entries
from compaction.passes.tasks import Key
from compaction.run import sizing
from compaction.run.passes import MapInputs, MapResult
from compaction.storage.filesystem import ByteSource, storage_errors
from compaction.storage.local import LocalFileSystem
from compaction.task_runner import Item, Job, Reading
from tests.golden import unpack_sample
from tests.local_passes import LocalPasses

T = TypeVar("T")
R = TypeVar("R")

AS_OF_MS = 1_798_761_600_000
LOG = "payments-0"
ALL: dict[str, Any] = {
    "settings": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0},
    "include_active": True,
    "as_of": AS_OF_MS,
}

Second = Callable[[], Any]


class RepeatedPasses(LocalPasses):
    """Every second place has the items of second attempts; the driver has the results of the first ones.

    :param second: the context of second attempts
    """

    def __init__(self, second: Second, parity: int) -> None:
        super().__init__()
        self._second, self._parity = second, parity

    def exchange(
        self,
        job: Job,
        tasks: Sequence[T],
        emit: Callable[[T], Iterable[Item]],
        join: Callable[[Iterable[Item]], Iterable[R]],
        reducers: int,
    ) -> list[R]:
        first = [item for task in tasks for item in emit(task)]
        with self._second():
            second = [item for task in tasks for item in emit(task)]
        results: list[R] = []
        for number, place in enumerate(sorted({place for place, _ in (*first, *second)})):
            items = second if number % 2 == self._parity else first
            results += join([item for item in items if item[0] == place])
        return results

    def build_offset_map(self, job: Job, inputs: MapInputs, task_entries: int) -> MapResult:
        summaries, first = super().build_offset_map(job, inputs, task_entries)
        with self._second():
            _, second = super().build_offset_map(job, inputs, task_entries)
        keys: set[Key] = {*first, *second}
        merged = {key: (second if key[1] % 2 == self._parity else first).get(key, []) for key in keys}
        return MapResult(summaries, {key: values for key, values in merged.items() if values})


@pytest.fixture
def log_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, size in {"_MIN_SLICE": 10_000, "_MAX_SLICE": 10_000, "_MAX_SCAN": 20_000, "_SHARD": 1_200}.items():
        monkeypatch.setattr(sizing, f"{name}_BYTES", size)
    return unpack_sample(tmp_path)


@contextmanager
def read_fails(monkeypatch: pytest.MonkeyPatch, *, after: int = 0) -> Iterator[None]:
    """Reads of the log fail, after some of them."""
    real, reads = LocalFileSystem.reader, iter(range(10**6))

    def reader(self: LocalFileSystem, path: str, start: int, end: int, **options: Any) -> ByteSource:
        if f"/{LOG}/" in path and next(reads) >= after:
            with storage_errors(path, "read"):
                raise OSError(errno.EIO, "Input/output error")
        return real(self, path, start, end, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "reader", reader)
        yield


def run_on(monkeypatch: pytest.MonkeyPatch, passes: Any) -> None:
    monkeypatch.setattr(Engine, "passes", lambda *_: lambda: passes)


def compact_copy(log_dir: Path) -> dict[str, Any]:
    return compaction.compact(log_dir, output_dir=log_dir.parent / "copy", **ALL).to_dict()


def compact_in_place(log_dir: Path) -> dict[str, Any]:
    return compaction.compact(log_dir, **ALL).to_dict()


def count(log_dir: Path) -> dict[str, Any]:
    return compaction.count(log_dir, topics="payments", by_partition=True).to_dict()


def verify(log_dir: Path) -> dict[str, Any]:
    before = log_dir.parent / "before"
    if not before.exists():
        shutil.copytree(log_dir, before, copy_function=shutil.copy2)
    return compaction.verify(before, log_dir, **ALL).to_dict()


def over_time(log_dir: Path) -> dict[str, Any]:
    return compaction.dry_run(log_dir, over_time=True, every="1d", topics="payments", as_of=AS_OF_MS).to_dict()


def policies(log_dir: Path) -> dict[str, Any]:
    return compaction.dry_run(log_dir, policies=["cleanup.policy=compact"], as_of=AS_OF_MS).to_dict()


def _errors(document: Any) -> Iterator[str]:
    """The texts in a document that name a repeated task."""
    if isinstance(document, dict):
        for value in document.values():
            yield from _errors(value)
    elif isinstance(document, list):
        for value in document:
            yield from _errors(value)
    elif isinstance(document, str) and "repeated task" in document:
        yield document


COMMANDS = [compact_copy, compact_in_place, count, verify, over_time, policies]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_repeated_task_whose_read_fails_fails_its_log_alone(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[[Path], dict[str, Any]]
) -> None:
    source = {path: path.read_bytes() for path in (log_dir / LOG).iterdir()}
    found: list[str] = []
    for parity in (0, 1):
        run_on(monkeypatch, RepeatedPasses(lambda: read_fails(monkeypatch, after=2), parity))
        found += _errors(command(log_dir))
        shutil.rmtree(log_dir.parent / "copy", ignore_errors=True)
    # of a log with one place, all items may be of the same attempt
    assert found
    assert all(f"{LOG}/" in error and "Input/output error" in error for error in found)
    assert {path: path.read_bytes() for path in (log_dir / LOG).iterdir()} == source


def test_a_repeated_task_that_reads_the_same_changes_nothing(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def nothing() -> Iterator[None]:
        yield

    for command in (count, over_time, policies, verify):
        run_on(monkeypatch, LocalPasses())
        once = command(log_dir)
        run_on(monkeypatch, RepeatedPasses(nothing, 0))
        assert _without_times(command(log_dir)) == _without_times(once)


def _without_times(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: _without_times(value) for name, value in document.items() if name not in ("seconds", "run_id")}
    return [_without_times(value) for value in document] if isinstance(document, list) else document


def test_keys_that_were_collected_in_part_are_not_used(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a dirty key, its records of the clean section would be retained."""
    compaction.compact(log_dir, engine="local", settings=ALL["settings"], as_of=AS_OF_MS)
    monkeypatch.setattr(sizing, "_KEY_FILTER_MIN_CLEAN_BYTES", 1)

    class Collecting(LocalPasses):
        def run(self, job: Job, tasks: Sequence[T], work: Callable[[T], R]) -> list[R]:
            if job.name != "keys":
                return super().run(job, tasks, work)
            with read_fails(monkeypatch):
                return super().run(job, tasks, work)

    monkeypatch.setattr("compaction.run.offset_maps._KEY_FILTER_CLEAN_RATIO", 0)
    run_on(monkeypatch, Collecting())
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
