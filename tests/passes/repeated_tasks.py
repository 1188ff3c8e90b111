"""Commands whose tasks are repeated, and whose second attempts cannot read a log: places have items of both attempts, as after
the loss of files of a shuffle."""

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
from typing import Any, NamedTuple
from unittest.mock import patch

import compaction
from compaction.engine import Job, Place
from compaction.engine_choice import EngineChoice
from compaction.files.filesystem import File, storage_errors
from compaction.files.local import LocalFileSystem
from compaction.run import sizing
from tests.golden import unpack_sample
from tests.local_passes import LocalPasses, Shuffled

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
