"""Random logs are left as by the plain cleaner, however they are cleaned: by any division of the work, with buffers of any
size, by any engine, and by the rules of each version. ``tests/conformance`` holds the plain cleaner to Kafka's.

All files of a log directory are compared after every round, and all figures of the reports.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from compaction.engine import Job, Reading
from compaction.engines.local import LocalEngine
from compaction.files.segment_file import SegmentReader
from compaction.kernels.keys import HashSecret, KeyFilter
from compaction.kernels.tables import ENTRY_BYTES
from compaction.passes import clean_into, decoder, scan
from compaction.passes.tasks import Resolved
from compaction.run import cleaner, sizing
from compaction.run.sizing import Sizes
from tests.local_job import TopicConfigs
from tests.local_passes import LocalPasses, Shuffled
from tests.memory import scratch
from tests.oracle.disk import read_partition
from tests.oracle.records import decode
from tests.oracle.segments import NaiveSegment
from tests.passes.random_cases import contents
from tests.scenarios.draw import drawn
from tests.scenarios.language import Round, Scenario
from tests.scenarios.plain import as_broker, is_plain, plainly
from tests.scenarios.runner import Left, Outcome, Outcomes, Way, by, in_place, offsets_of, rounds_of

T = TypeVar("T")

WHOLE = Sizes(1 << 30, 1 << 30, 1 << 30)
TINY = Sizes(500, 1_500, 7)
#: logs whose rules the plain cleaner knows, and others
LOGS = 60
OF_SEGMENTS = ".log", ".index", ".timeindex", ".txnindex", ".deleted"
VERSIONS = "2.8.2", "3.0.2", "3.9.1", "3.9.2", "4.3.1"


@cache
def every() -> Mapping[str, Scenario]:
    """All logs, drawn when a test needs them: each process imports this module."""
    return drawn(range(LOGS))


@cache
def plain() -> Mapping[str, Scenario]:
    return {name: one for name, one in every().items() if is_plain(one)}


def some(count: int) -> dict[str, Scenario]:
    return dict([*every().items()][:count])


class Kept(NamedTuple):
    """A log after a round: the outcome, its segments and other files, its entries in the checkpoint files."""

    outcome: Outcome
    segments: list[NaiveSegment]
    others: Mapping[str, bytes]
    offsets: Mapping[str, int | None]

    @classmethod
    def of(cls, left: Left) -> Kept:
        # a new segment has the time at which the program ran
        segments = [each if each.log else replace(each, mtime_ms=0) for each in read_partition(left.partition)]
        others = {file.name: file.read_bytes() for file in left.partition.iterdir() if file.suffix not in OF_SEGMENTS}
        offsets = {name: offsets_of(left.partition.parent, name).get(left.name) for name in ("log_starts", "cleaner_offsets")}
        return cls(left.outcome._replace(refused=""), segments, others, offsets)

    def seen_by(self, plain: Kept) -> Kept:
        """Without what the plain cleaner does not have."""
        return self._replace(outcome=self.outcome.seen_by(plain.outcome), others=plain.others)

    def differences(self, expected: Kept) -> Iterator[str]:
        for name in ("outcome", "offsets"):
            if getattr(self, name) != getattr(expected, name):
                yield f"{name} {getattr(self, name)}, expected {getattr(expected, name)}"
        for name in sorted(self.others.keys() | expected.others):
            if self.others.get(name) != expected.others.get(name):
                yield f"{name} differs"
        ours, theirs = ({each.base_offset: each for each in kept.segments} for kept in (self, expected))
        if ours.keys() != theirs.keys():
            yield f"segments {[*ours]}, expected {[*theirs]}"
        for base in ours.keys() & theirs:
            if ours[base] != theirs[base]:
                yield f"segment {base}: {first_difference(ours[base], theirs[base])}"


def first_difference(ours: NaiveSegment, theirs: NaiveSegment) -> str:
    for one, other in zip(ours.batches, theirs.batches, strict=False):
        if one.raw != other.raw:
            return f"batch {one} {one.records()}, expected {other} {other.records()}"
    return ", ".join(name for name, value in vars(ours).items() if name != "batches" and value != getattr(theirs, name))


Rounds = Mapping[tuple[str, int], Kept]


def kept_by(way: Way, found: Mapping[str, Scenario] | None = None) -> Rounds:
    """Each log after each round; all logs if none are given."""
    with scratch() as root:
        return {(left.name, left.number): Kept.of(left) for left in rounds_of(root, found or every(), way, as_broker)}


def differences(ours: Rounds, expected: Rounds) -> list[str]:
    found = [f"{name}, round {number}" for name, number in ours.keys() ^ expected.keys()]
    for (name, number), kept in expected.items():
        if (name, number) in ours:
            found += [f"{name}, round {number}: {text}" for text in ours[name, number].differences(kept)]
    return found


def differences_from_plain(ours: Rounds, found: Mapping[str, Scenario], way: Way | None = None) -> list[str]:
    expected = kept_by(way or plainly(found), found)
    return differences({at: kept.seen_by(expected[at]) for at, kept in ours.items() if at in expected}, expected)


@pytest.fixture(scope="module")
def written() -> tuple[Rounds, int]:
    """By default, and how many segments stayed."""
    way = Staying()
    return kept_by(way), way.stayed


@pytest.fixture(scope="module")
def expected(written: tuple[Rounds, int]) -> Rounds:
    return written[0]


def test_random_logs_are_left_as_by_the_plain_cleaner(expected: Rounds) -> None:
    assert differences_from_plain(expected, plain()) == []
    cleaned = [kept for kept in expected.values() if kept.outcome.end_offset is not None]
    assert len(cleaned) > 2 * LOGS


def from_anywhere(name: str, scenario: Scenario) -> Scenario:
    """With checkpoints at any offset of inactive segments: what is clean is cleaned again."""
    rng, rounds, bases = random.Random(name), list[Round](), [0]
    for each in scenario.rounds:
        bases += [max(batch.next_offset for batch in decode(segment[-1])) for segment in each.segments if segment]
        rounds.append(replace(each, checkpoint=rng.randrange(bases[-2] + 1)))
    return replace(scenario, rounds=rounds)


def test_logs_cleaned_from_anywhere_are_left_as_by_the_plain_cleaner(monkeypatch: pytest.MonkeyPatch) -> None:
    """And fewer survivors are looked up than there are: of what was clean, those that the key filter knows."""
    lookups = Counter[str]()
    prune = KeyFilter.prune

    def counted(self: KeyFilter, given: NDArray[np.uint64], first_dirty_offset: int) -> NDArray[np.uint64]:
        kept = prune(self, given, first_dirty_offset)
        lookups.update(before=len(given), after=len(kept))
        return kept

    monkeypatch.setattr(KeyFilter, "prune", counted)
    found = {name: from_anywhere(name, one) for name, one in drawn(range(LOGS, 2 * LOGS)).items() if is_plain(one)}
    assert differences_from_plain(kept_by(by(sizes=TINY), found), found) == []
    assert 0 < lookups["after"] < lookups["before"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_rules_of_a_version_are_those_of_the_plain_cleaner(version: str) -> None:
    found = drawn(range(40), tuple(map(int, version.split("."))))
    ours = kept_by(by(version), found)
    found = {name: one for name, one in found.items() if is_plain(one)}
    assert differences_from_plain(ours, found, plainly(found, version)) == []


@pytest.mark.parametrize(("older", "newer"), [("3.0.2", "3.1.2"), ("3.9.1", "3.9.2"), ("3.9.2", "4.0.2"), ("4.3.1", "4.4.0")])
def test_random_logs_show_each_change_of_the_rules(older: str, newer: str) -> None:
    """But for that of 3.0, which a scenario shows (``an-empty-segment-joins-a-far-group-since-3-0``)."""
    first = dict([*plain().items()][:40])
    assert differences(*(kept_by(plainly(first, version), first) for version in (older, newer))) != []


def test_last_segments_of_exports_are_left_as_by_the_plain_cleaner() -> None:
    ours = kept_by(by(include_active=True), plain())
    assert differences_from_plain(ours, plain(), plainly(plain(), include_active=True)) == []


class AnyOrder(LocalPasses):
    """Tasks as a cluster may run them: they end, and their values arrive, in any order."""

    def __init__(self, cores: int, rng: random.Random) -> None:
        super().__init__(cores)
        self._rng = rng

    def _shuffled(self, items: Iterable[T]) -> list[T]:
        return sorted(items, key=lambda _: self._rng.random())

    def shuffle(self, *inputs: Any, **options: Any) -> Shuffled:
        found = super().shuffle(*inputs, **options)
        values = [{place: self._shuffled(part[place]) for place in self._shuffled(part)} for part in found.values]
        return Shuffled(self._shuffled(found.results), values)


def in_any_order(seed: int) -> Way:
    """On any number of cores, from which sizes follow."""
    rng = random.Random(seed)
    return by(start=lambda: AnyOrder(rng.choice((1, 2, 3, 20, 200)), rng))


def of_any_size(seed: int) -> Way:
    """Slices, tasks and shards of other sizes in each run, also in any order."""
    rng = random.Random(seed)
    size = partial(rng.randrange, 200, 20_000)
    return lambda *run: by(sizes=Sizes(size(), size(), rng.randrange(1, 300)), start=lambda: AnyOrder(2, rng))(*run)


def twice_among_leftovers(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
    """After another run left outputs behind, and again at once, which finds nothing dirty."""
    for name in topics:
        for left in (".log.cleaned", ".index.cleaned", ".log.deleted"):
            (log_dir / f"{name}-0" / f"{0:020d}{left}").write_bytes(b"left by another")
    cleaned, after = in_place(log_dir, now_ms, topics)
    before = contents(after)
    in_place(log_dir, now_ms, topics)
    assert contents(after) == before
    return cleaned, after


WAYS: Mapping[str, Way] = {
    "any size": of_any_size(1),
    "any order": in_any_order(1),
    "twice among leftovers": twice_among_leftovers,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_it_does_not_matter_how_the_work_is_divided(way: Way, expected: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    # small logs are cut, too
    monkeypatch.setattr(sizing, "_MIN_SLICE_BYTES", 300)
    assert differences(kept_by(way), expected) == []


def test_a_log_is_cleaned_the_same_by_itself_and_among_many(expected: Rounds) -> None:
    for name, one in some(15).items():
        alone = kept_by(in_place, {name: one})
        assert differences(alone, {at: expected[at] for at in alone}) == []


@pytest.mark.parametrize("sizes", [TINY, None], ids=["tiny", "by size"])
def test_worker_processes_leave_the_same(sizes: Sizes | None, expected: Rounds) -> None:
    with LocalEngine(2, inline_bytes=0) as workers:
        ours = kept_by(by(sizes=sizes, start=lambda: workers), some(20))
    assert differences(ours, {at: kept for at, kept in expected.items() if at[0] in some(20)}) == []


class Watching(LocalPasses):
    """Records which shards pass 1 emitted as complete maps."""

    def __init__(self) -> None:
        super().__init__()
        self.complete: list[bool] = []

    def shuffle(self, job: Job, *inputs: Any, **options: Any) -> Shuffled:
        scanned = super().shuffle(job, *inputs, **options)
        for part in scanned.values if job.name == "pass 1" else ():
            shards = ([each for each in values if not isinstance(each, Reading)] for values in part.values())
            for emitted in filter(None, shards):
                maps = [isinstance(each, Resolved) for each in emitted]
                assert not any(maps) or len(maps) == 1
                self.complete.append(maps[0])
        return scanned


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_hashes_under_an_extreme_secret_give_the_same(word: int, expected: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a task for each log, whose maps have all keys."""
    watching = Watching()
    monkeypatch.setattr(HashSecret, "random", lambda: HashSecret(word, word))
    assert differences(kept_by(by(sizes=WHOLE, start=lambda: watching)), expected) == []
    assert len(watching.complete) > LOGS
    assert all(watching.complete)


def test_a_full_map_is_spilled_and_the_result_is_the_same(expected: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    watching = Watching()
    monkeypatch.setattr(cleaner, "_TASK_MAP_BYTES", 4 * ENTRY_BYTES)
    assert differences(kept_by(by(sizes=WHOLE, start=lambda: watching)), expected) == []
    assert not all(watching.complete)


@pytest.mark.parametrize("sizes", [WHOLE, Sizes(700, 900, 3)], ids=["one task a log", "many tasks"])
def test_buffers_of_any_size_give_the_same(sizes: Sizes, expected: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every buffer so small that nearly every batch is too large for it, and maps of a handful of keys."""
    monkeypatch.setattr(cleaner, "_TASK_MAP_BYTES", 8 * ENTRY_BYTES)
    monkeypatch.setattr(scan, "_ENTRIES", 1)
    monkeypatch.setattr(clean_into, "_OUT_BYTES", 70)
    monkeypatch.setattr(clean_into, "_KEPT_ROWS", 1)
    monkeypatch.setattr(decoder, "SCRATCH_BYTES", 64)
    defaults = SegmentReader.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "block_bytes", 200)
    assert differences(kept_by(by(sizes=sizes)), expected) == []


class Staying:
    """A way that counts the segments that stayed, and those that were replaced."""

    def __init__(self, sizes: Sizes | None = None) -> None:
        self.way, self.stayed, self.replaced = by(sizes=sizes), 0, 0

    def __call__(self, log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
        # all but the active ones
        before = {path: path.stat().st_ino for name in topics for path in sorted(log_dir.glob(f"{name}-0/*.log"))[:-1]}
        cleaned, after = self.way(log_dir, now_ms, topics)
        for path, inode in before.items():
            if cleaned[path.parent.name.removesuffix("-0")].end_offset is not None:
                same = path.exists() and path.stat().st_ino == inode
                self.stayed, self.replaced = self.stayed + same, self.replaced + (not same)
        return cleaned, after


@pytest.mark.parametrize("sizes", [WHOLE, TINY], ids=["one task a log", "many tasks"])
def test_segments_whose_output_would_be_the_same_are_not_written(
    sizes: Sizes, written: tuple[Rounds, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, stayed_by_default = written
    monkeypatch.setattr(clean_into, "_MIN_BYTES", 0)
    staying = Staying(sizes)
    ours = kept_by(staying)
    # but for what the run replaced
    deleted = {at: kept.outcome.figures["deleted_bytes"] for at, kept in ours.items() if kept.outcome.figures}
    before = {at: kept.outcome.figures["deleted_bytes"] for at, kept in expected.items() if kept.outcome.figures}
    assert all(deleted[at] <= before[at] for at in deleted)
    assert sum(deleted.values()) < sum(before.values())
    assert differences(without_deleted(ours), without_deleted(expected)) == []
    assert staying.stayed > stayed_by_default + 15
    assert staying.replaced > 20


def without_deleted(rounds: Rounds) -> Rounds:
    return {
        at: kept._replace(outcome=kept.outcome._replace(figures={**(kept.outcome.figures or {}), "deleted_bytes": 0}))
        for at, kept in rounds.items()
    }


def test_a_segment_whose_indexes_would_differ_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_into, "_MIN_BYTES", 0)

    def other(way: Way) -> Way:
        interval = {"index.interval.bytes": "1048576"}
        return lambda log_dir, now_ms, topics: way(
            log_dir, now_ms, {name: {**each, **interval} for name, each in topics.items()}
        )

    assert differences_from_plain(kept_by(other(in_place), plain()), plain(), other(plainly(plain()))) == []
