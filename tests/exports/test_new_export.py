"""Of two runs that write a new export to one prefix of a store at the same time, at most one completes it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Condition, current_thread
from typing import Any

import pytest

from compaction.errors import CompactionError, StorageError
from compaction.exports import new_export
from compaction.files import mixed
from compaction.files.filesystem import join
from compaction.files.manifest import MARKER, marker
from compaction.files.mixed import OutputFileSystem, marked_by
from tests.files.remote_places import PLACE

OUT = f"{PLACE}/out"
OURS, THEIRS = "ours", "theirs"
NAMES = ["log", "manifest"]
#: calls of a run that completes
CALLS = 11


def files(bucket: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in bucket.rglob("*") if path.is_file()}


def complete(content: str, *, failing: bool = False) -> str:
    """A run; returns what it has written, or its error."""
    try:
        with new_export._new_objects(OUT) as export:
            for name in NAMES:
                export.write(join(export.place, name), [content.encode()])
            if failing:
                raise StorageError("no space", path=OUT)
    except CompactionError as error:
        return str(error)
    return content


class Turns:
    """Two runs, of which one at a time calls the store, in a given order; then in any order."""

    def __init__(self, order: list[str]) -> None:
        self._order, self._turn, self._running = order, Condition(), {OURS, THEIRS}

    def call(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call a function when it is the turn of this thread's run."""
        own = current_thread().name
        with self._turn:
            self._turn.wait_for(lambda: not self._order or self._order[0] == own)
            self._order[:1] = []
            self._turn.notify_all()
            return function(*given, **named)

    def run(self, name: str, *, failing: bool) -> str:
        """A run to its end."""
        current_thread().name = name
        try:
            return complete(name, failing=failing)
        finally:
            with self._turn:
                self._order[:] = [each for each in self._order if each != name]
                self._turn.notify_all()


TURNS = Turns([])


class InTurns(OutputFileSystem):
    """Calls the store in turn."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("mkdir", "write_file", "listdir", "unlink", "open", "remove_tree"):
            return found
        return lambda *given, **named: TURNS.call(found, *given, **named)


def in_turns(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: TURNS.call(function, *given)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Callable[..., set[str]]:
    """Both runs, in an order of calls; returns what they said."""
    monkeypatch.setattr(new_export, "OutputFileSystem", InTurns)
    for module, name in ((new_export, "ObjectOutput"), (new_export, "marked_by"), (mixed, "marked_by")):
        monkeypatch.setattr(module, name, in_turns(getattr(module, name)))

    def run(order: list[str], failing: str | None = None) -> set[str]:
        monkeypatch.setattr(f"{__name__}.TURNS", Turns(order))
        with ThreadPoolExecutor(2) as pool:
            return set(pool.map(lambda name: TURNS.run(name, failing=name == failing), (OURS, THEIRS)))

    return run


def orders() -> Iterator[list[str]]:
    """One whole run between two calls of the other, then any."""
    for before in range(CALLS + 1):
        yield [OURS] * before + [THEIRS] * 2 * CALLS + [OURS] * 2 * CALLS
    generator = random.Random(7)
    for _ in range(300):
        yield generator.choices((OURS, THEIRS), k=4 * CALLS)


def empty(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def test_two_runs_at_once_do_not_mix_their_outputs(bucket: Path, turns: Callable[..., set[str]]) -> None:
    """Both have found the prefix empty before. What a run has completed is not changed by the other."""
    completed = []
    for order in orders():
        told = turns(list(order))
        found = files(bucket)
        written = told & {OURS, THEIRS}
        assert found == {name: each for each in written for name in NAMES}, (order, told)
        assert len(written) < 2
        assert all("; let one run at a time write there" in each for each in told - written)
        completed += sorted(written)
        empty(bucket / "out")
    assert {OURS, THEIRS} == set(completed) and len(completed) > 200


def test_a_run_that_fails_removes_nothing_of_another_one(bucket: Path, turns: Callable[..., set[str]]) -> None:
    completed = 0
    for order in orders():
        told = turns(list(order), failing=OURS)
        found = files(bucket)
        assert found == (dict.fromkeys(NAMES, THEIRS) if THEIRS in told else {}), (order, told)
        completed += THEIRS in told
        if (bucket / "out").exists():
            empty(bucket / "out")
    assert completed > 20


def test_a_marker_of_another_run_is_an_error_and_is_kept(bucket: Path) -> None:
    """A run that writes another kind of output removes what it takes for that of a killed run."""
    with pytest.raises(StorageError, match="another run writes to this directory; let one run"), new_export.new_export(OUT):
        (bucket / "out" / MARKER).write_bytes(marker("other"))
    assert marked_by(OUT) == "other"
