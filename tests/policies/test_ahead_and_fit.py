"""What comes after the present, and the search for settings that fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from compaction.policies.arrivals import NEVER, Arrivals, Int64s
from compaction.policies.over_time import changed, continued, fit
from compaction.policies.replay import Clock, Replay
from compaction.policies.result import Effect, Event, Sample
from tests.kafka.encode import Batch, Record
from tests.policies.simulated import arrivals_of, config_of

DAY_MS = 86_400_000
FIRST_MS = 20_000 * DAY_MS


def daily(log_dir: Path, days: int, keys: int) -> tuple[Arrivals, Int64s]:
    """Each key once a day, and a key of its own on each day."""
    names = [[b"k%d" % number for number in range(keys)] + [b"only-%d" % day] for day in range(days)]
    times = [FIRST_MS + day * DAY_MS + number for day, of_day in enumerate(names) for number in range(len(of_day))]
    records = [Record(at, times[at], name, b"value") for at, name in enumerate(sum(names, []))]
    return arrivals_of(log_dir, [Batch([record]).encode() for record in records]), np.array(times)


def test_keys_recur_as_they_did(tmp_path: Path) -> None:
    arrivals, times = daily(tmp_path / "a", 40, 10)
    now_ms = FIRST_MS + 40 * DAY_MS - 1
    found, found_ms = continued(arrivals, times, now_ms, 70 * DAY_MS)
    longer, longer_ms = daily(tmp_path / "b", 110, 10)
    assert found_ms.tolist() == longer_ms.tolist()
    assert found.cells.bucket.tolist() == longer.cells.bucket.tolist()
    assert found.cells.successor.tolist() == longer.cells.successor.tolist()
    assert found.cells.records.tolist() == longer.cells.records.tolist()


def test_a_day_that_is_cut_has_no_later_records(tmp_path: Path) -> None:
    arrivals, times = daily(tmp_path, 3, 4)
    now_ms = FIRST_MS + 3 * DAY_MS - 1
    found, found_ms = continued(arrivals, times, now_ms, DAY_MS)
    assert found_ms[-1] <= now_ms + DAY_MS
    assert len(found_ms) == len(found.parts) == 4 * 5
    assert found.cells.records.sum() == len(found_ms)
    ends = found.cells.successor[found.cells.successor < NEVER]
    assert ends.max() < len(found_ms)


def test_nothing_recurs_if_nothing_arrived_lately(tmp_path: Path) -> None:
    arrivals, times = daily(tmp_path, 3, 4)
    same = continued(arrivals, times, FIRST_MS + 300 * DAY_MS, 90 * DAY_MS)
    assert same[0] is arrivals and same[1] is times


def effect(text: str, peak: int, written: int = 0, deleted: int = 0) -> Effect:
    samples = tuple(Sample(at_ms, peak, peak, peak, peak, 0, 0, 1, peak) for at_ms in (1, 2))
    events = (Event(1, "cleaned", 0, written), Event(1, "deleted", deleted, 0))
    return Effect(text, samples, events)


def test_the_gentlest_setting_that_fits_is_found() -> None:
    peaks = {"segment.ms=1d": 90, "segment.ms=6h": 80, "segment.ms=1h": 70}

    def simulate(policy: str) -> Effect:
        peak = next((peak for change, peak in peaks.items() if change in policy), 200)
        return effect(policy, peak, written=1000 - peak)

    found = fit("cleanup.policy=compact", 85, True, False, simulate)
    assert found.found is not None and found.strongest is not None
    assert found.found.changes == ("segment.ms=6h",)
    assert found.strongest.changes == ("segment.ms=1h",)
    assert found.trials[0].changes == () and found.trials[0].peak_bytes == 200


def test_settings_are_combined_and_the_search_ends() -> None:
    def simulate(policy: str) -> Effect:
        return effect(policy, 100 - 10 * policy.count("="), written=1)

    found = fit("configured", 75, True, True, simulate)
    assert found.found is not None and len(found.found.changes) == 3
    nothing = fit("configured", 1, True, False, simulate)
    assert nothing.found is None and max(len(trial.changes) for trial in nothing.trials) == 3


def test_a_setting_of_the_policy_is_replaced() -> None:
    assert changed("configured", ("segment.ms=1d",)) == "segment.ms=1d"
    text = changed("cleanup.policy=[compact,delete],segment.ms=7d", ("segment.ms=1d", "retention.ms=3d"))
    assert text == "cleanup.policy=[compact,delete],segment.ms=1d,retention.ms=3d"


def test_what_comes_after_is_cleaned_as_if_it_had_come(tmp_path: Path) -> None:
    short, longer = daily(tmp_path / "a", 40, 10), daily(tmp_path / "b", 100, 10)
    ends = FIRST_MS + DAY_MS * np.arange(1, 101)
    config = config_of({"cleanup.policy": "compact", "segment.ms": str(DAY_MS), "min.cleanable.dirty.ratio": "0.3"})
    effects = []
    for arrivals, times in (continued(*short, FIRST_MS + 40 * DAY_MS - 1, 60 * DAY_MS), longer):
        effects.append(Replay(arrivals, times, config, DAY_MS).run(Clock(ends, ends), "simulated"))
    found, expected = effects
    assert [event.at_ms for event in found.events] == [event.at_ms for event in expected.events]
    # keys of single days have other lengths
    assert all(abs(one.bytes / other.bytes - 1) < 0.01 for one, other in zip(found.samples, expected.samples, strict=True))
