"""An engine may repeat any task at any time, and the second attempt can end otherwise than the first: what places have of it is
not mixed with what the driver has of the first one.

Here second attempts cannot read a log, and places have items of both attempts, as after the loss of files of a shuffle.
``tools/search`` draws the command, the log and the places (``problems_of``).
"""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

import pytest

import compaction
from compaction.engine import Job, Place, Reading
from compaction.engine_choice import EngineChoice
from compaction.errors import CorruptLogError
from compaction.files.filesystem import File, storage_errors
from compaction.files.local import LocalFileSystem
from compaction.passes.merge import accepted_entries
from compaction.run import offset_maps, sizing
from tests.golden import unpack_sample
from tests.local_passes import LocalPasses, Shuffled

R = TypeVar("R")

AS_OF_MS = 1_798_761_600_000
LOG = "payments-0"
ALL: dict[str, Any] = {
    "settings": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0},
    "include_active": True,
    "as_of": AS_OF_MS,
}
#: so small that a log has several slices, tasks and shards
SIZES = {"_MIN_SLICE": 10_000, "_MAX_SLICE": 10_000, "_MAX_SCAN": 20_000, "_SHARD": 1_200}
_MOST_READS = 40


class RepeatedPasses(LocalPasses):
    """About every second place, by ``seed``, has the items of second attempts; the driver has the results of the first ones.

    :param second: the context of second attempts
    """

    def __init__(self, second: Callable[[], AbstractContextManager[object]], seed: int) -> None:
        super().__init__()
        self._second, self._seed = second, seed

    def _has_second(self, place: Place) -> bool:
        return random.Random(f"{self._seed} {place}").random() < 0.5

    def shuffle(self, job: Job, source: Any, emit: Any, places: Any, *, merges: bool = False) -> Shuffled:
        first = super().shuffle(job, source, emit, places)
        with self._second():
            second = super().shuffle(job, source, emit, places)
        return Shuffled(first.results, [self._mixed(*attempts) for attempts in zip(first.values, second.values, strict=True)])

    def _mixed(self, first: dict[Place, list[Any]], second: dict[Place, list[Any]]) -> dict[Place, list[Any]]:
        places = {*first, *second}
        mixed = {place: (second if self._has_second(place) else first).get(place, []) for place in places}
        return {place: values for place, values in mixed.items() if values}


@contextmanager
def reads_fail(log: str = LOG, after: int = 0) -> Iterator[None]:
    """Reads of a log fail, after some of them."""
    real, reads = LocalFileSystem.open, iter(range(10**6))

    def opened(self: LocalFileSystem, path: str, start: int = 0, end: int | None = None, **options: Any) -> File:
        if end is not None and f"/{log}/" in path and next(reads) >= after:
            with storage_errors(path, "read"):
                raise OSError(errno.EIO, "Input/output error")
        return real(self, path, start, end, **options)

    with patch.object(LocalFileSystem, "open", opened):
        yield


@contextmanager
def running_on(passes: Any) -> Iterator[None]:
    """Commands run on these passes, and divide logs into many parts."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(EngineChoice, "passes", lambda *_: lambda: passes))
        for name, size in SIZES.items():
            stack.enter_context(patch.object(sizing, f"{name}_BYTES", size))
        yield


def compact_copy(log_dir: Path) -> dict[str, Any]:
    output = log_dir.parent / "copy"
    shutil.rmtree(output, ignore_errors=True)
    return compaction.compact(log_dir, output_dir=output, **ALL).to_dict() | {"files": digests(output)}


def compact_in_place(log_dir: Path) -> dict[str, Any]:
    changed = log_dir.parent / "changed"
    shutil.rmtree(changed, ignore_errors=True)
    shutil.copytree(log_dir, changed, copy_function=shutil.copy2)
    return compaction.compact(changed, **ALL).to_dict() | {"files": digests(changed)}


def count(log_dir: Path) -> dict[str, Any]:
    return compaction.count(log_dir, by_partition=True, top=3).to_dict()


def verify(log_dir: Path) -> dict[str, Any]:
    before = log_dir.parent / "before"
    if not before.exists():
        shutil.copytree(log_dir, before, copy_function=shutil.copy2)
    return compaction.verify(before, log_dir, **ALL).to_dict()


def over_time(log_dir: Path) -> dict[str, Any]:
    return compaction.dry_run(log_dir, over_time=True, every="1d", topics="payments", as_of=AS_OF_MS).to_dict()


def policies(log_dir: Path) -> dict[str, Any]:
    return compaction.dry_run(log_dir, policies=["cleanup.policy=compact"], as_of=AS_OF_MS).to_dict()


COMMANDS = (compact_copy, compact_in_place, count, verify, over_time, policies)


def digests(log_dir: Path) -> dict[str, str]:
    """Of the files of each log."""
    return {
        path.name: sha256(b"".join(file.name.encode() + file.read_bytes() for file in sorted(path.glob("0*")))).hexdigest()
        for path in sorted(log_dir.iterdir())
        if path.is_dir() and not path.name.startswith(".")
    }


def errors_in(document: Any) -> Iterator[str]:
    """The texts in a document that name a failed read."""
    if isinstance(document, dict | list):
        for value in document.values() if isinstance(document, dict) else document:
            yield from errors_in(value)
    elif isinstance(document, str) and "Input/output error" in document:
        yield document


def without_times(document: Any) -> Any:
    if isinstance(document, dict):
        times = ("seconds", "run_id", "log_dir", "output_dir")
        return {name: without_times(value) for name, value in document.items() if name not in times}
    return [without_times(value) for value in document] if isinstance(document, list) else document


class Drawn(NamedTuple):
    """A random command, the log that cannot be read after some reads, and the places of second attempts."""

    command: Callable[[Path], dict[str, Any]]
    log: str
    after: int
    seed: int

    @classmethod
    def from_seed(cls, seed: int, logs: Sequence[str]) -> Drawn:
        chance = random.Random(seed)
        return cls(chance.choice(COMMANDS), chance.choice(logs), chance.randrange(_MOST_READS), seed)

    def problems(self, log_dir: Path) -> list[str]:
        """What is wrong: another result than that of an undisturbed run, without an error of the log."""
        with running_on(RepeatedPasses(nullcontext, 0)):
            expected = self.command(log_dir)
        with running_on(RepeatedPasses(partial(reads_fail, self.log, self.after), self.seed)):
            found = self.command(log_dir)
        errors = list(errors_in(found))
        wrong = [f"{self}: {error}" for error in errors if self.log not in error]
        if not errors and without_times(found) != without_times(expected):
            wrong.append(f"{self}: the result is not that of an undisturbed run")
        if "files" in found:
            source = digests(log_dir)
            wrong += [
                f"{self}: {log} differs"
                for log, digest in found["files"].items()
                if digest != (source if errors and log == self.log else expected["files"])[log]
            ]
        return wrong


def problems_of(seed: int) -> list[str]:
    with TemporaryDirectory(prefix="repeated-") as scratch:
        log_dir = unpack_sample(Path(scratch))
        logs = [path.name for path in sorted(log_dir.iterdir()) if path.is_dir() and not path.name.startswith("__cluster")]
        return Drawn.from_seed(seed, logs).problems(log_dir)


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
