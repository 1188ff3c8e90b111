"""The fuzzer: random logs cleaned by Kafka's own ``UnifiedLog`` and ``Cleaner`` and by the job; the results must be equal.

``python -m tests.conformance.fuzz --seeds 0:2000`` draws the scenarios of these seeds. One that fails is reduced and written to
``tests/scenarios``, where the tests find it; ``python -m tests.scenarios`` then adds Kafka's answers. With ``--spark`` the job
runs on Spark, else in this process. ``--kafka-version 3.1.2`` has the cleaner of that version as the judge, and the job follows
its rules; ``--kafka-version all`` runs the seeds once for each version and ends with a line for each.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from compaction.run.sizing import Sizes
from tests.conformance.kafkas import Compared
from tests.kafka.gateway import Gateway, shared_gateway
from tests.kafka.jars import REFERENCE, VERSIONS
from tests.local_job import clean_on_spark
from tests.memory import scratch
from tests.scenarios.draw import draw
from tests.scenarios.language import HERE, Scenario
from tests.scenarios.printer import printed
from tests.scenarios.runner import Way, in_place_by, outcomes
from tests.scenarios.shrink import shrink


@dataclass(frozen=True)
class Tally:
    """The result of a run of the fuzzer; ``failed`` has the problems by scenario."""

    scenarios: int = 0
    rounds: int = 0
    cleaned: int = 0
    refused: int = 0
    expired: int = 0
    failed: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.scenarios + other.scenarios,
            self.rounds + other.rounds,
            self.cleaned + other.cleaned,
            self.refused + other.refused,
            self.expired + other.expired,
            {**self.failed, **other.failed},
        )

    def __str__(self) -> str:
        return (
            f"{self.scenarios} logs, {self.rounds} rounds, {self.cleaned} of them cleaned, {self.refused} logs refused by both,"
            f" {self.expired} segments expired, {len(self.failed)} logs differ"
        )


def random_sizes(seed: int, *, spark: bool = False) -> Sizes:
    """Sizes of the work, from extremely small to complete logs; on Spark large enough that starting tasks does not dominate."""
    rng = random.Random(f"sizes {seed}")
    if spark:
        return Sizes(rng.choice((4_000, 20_000, 1 << 20)), rng.choice((20_000, 200_000)), rng.choice((2, 30, 1 << 20)))
    some = (500, 2_000, 1 << 20)
    return Sizes(rng.choice(some), rng.choice(some), rng.choice((2, 30, 1 << 20)))


def on_spark(sizes: Sizes, version: str) -> Way:
    """As Spark jobs, in a session of its own."""
    job = clean_on_spark(sizes, kafka_version=version)
    return lambda log_dir, now_ms, topics: (outcomes(job(log_dir, now_ms, topics).values()), log_dir)


def run_scenarios(
    gateway: Gateway, root: Path, found: Mapping[str, Scenario], ours: Way, *, include_active: bool = False
) -> Tally:
    """All scenarios, side by side; ``include_active`` says that the job cleans last segments too."""
    both = Compared(gateway, ours, include_active).run(root, found)
    failed: dict[str, list[str]] = {}
    for (name, number), problems in both.problems.items():
        failed.setdefault(name, []).extend(f"round {number}: {problem}" for problem in problems)
    return Tally(
        len(found),
        len(both.rounds),
        sum(each.outcome.end_offset is not None for each in both.rounds),
        sum(bool(each.outcome.refused) for each in both.rounds),
        sum(each.outcome.deleted for each in both.rounds),
        failed,
    )


def make_small(gateway: Gateway, scenario: Scenario, sizes: Sizes | None, *, include_active: bool = False) -> Scenario:
    """The smallest scenario found that still fails."""

    def fails(smaller: Scenario) -> bool:
        with scratch() as root:
            try:
                ours = in_place_by(gateway.version, sizes, include_active=include_active)
                return bool(run_scenarios(gateway, root, {"small": smaller}, ours, include_active=include_active).failed)
            except Exception:  # noqa: BLE001 - what Kafka or the runner cannot even build is no smaller case
                return False

    return shrink(scenario, fails)


@dataclass(frozen=True)
class Batch:
    """Scenarios that the job cleans in one run; ``first`` also decides the sizes of its work."""

    first: int
    count: int
    version: str = REFERENCE
    spark: bool = False
    include_active: bool = False

    @property
    def sizes(self) -> Sizes:
        """The sizes of the work."""
        return random_sizes(self.first, spark=self.spark)

    def run(self) -> Tally:
        """Runs them, with the cleaner of the version as the judge."""
        gateway = shared_gateway(self.version)
        ours = in_place_by(self.version, self.sizes, include_active=self.include_active)
        if self.spark:
            ours = on_spark(self.sizes, self.version)
        found = {f"seed{seed}": draw(seed, gateway.release) for seed in range(self.first, self.first + self.count)}
        with scratch() as root:
            return run_scenarios(gateway, root, found, ours, include_active=self.include_active)

    def write_small(self, name: str, directory: Path = HERE) -> Path:
        """Writes the smallest scenario found that fails as this one does, as a file of scenarios."""
        gateway = shared_gateway(self.version)
        scenario = draw(int(name.removeprefix("seed")), gateway.release)
        small = make_small(gateway, scenario, self.sizes, include_active=self.include_active)
        directory.mkdir(exist_ok=True)
        path = directory / f"{name}.txt"
        version = "" if self.version == REFERENCE else self.version
        path.write_text(printed(name, replace(small, version=version)), encoding="utf-8")
        return path


def run_seeds(version: str, options: argparse.Namespace) -> Tally:
    """The scenarios of these seeds, with the cleaner of that version as the judge."""
    first, end = (int(part) for part in options.seeds.split(":"))
    tally = Tally()
    for start in range(first, end, options.chunk):
        began = time.monotonic()
        batch = Batch(start, min(options.chunk, end - start), version, options.spark, options.include_active)
        tally += (found := batch.run())
        seconds = time.monotonic() - began
        print(f"{version}, seeds {start}:{start + batch.count}, {batch.sizes}: {found} ({seconds:.0f} s)", flush=True)
        for name, problems in found.failed.items():
            print(f"{name}:", *problems[:5], sep="\n  ", flush=True)
            if not options.no_shrink:
                batch.write_small(name)
    return tally


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; 1 if a log differs."""
    options = argparse.ArgumentParser(prog="python -m tests.conformance.fuzz", description=__doc__.splitlines()[0])
    options.add_argument("--seeds", required=True, metavar="A:B", help="from A up to but without B")
    options.add_argument("--chunk", type=int, default=100, help="logs that the job cleans in one run")
    options.add_argument("--spark", action="store_true", help="run the job on Spark")
    options.add_argument("--include-active", action="store_true", help="clean last segments too; Kafka rolls them before")
    options.add_argument("--no-shrink", action="store_true", help="only tell what differs")
    options.add_argument("--kafka-version", default=REFERENCE, choices=("all", REFERENCE, *VERSIONS), help="the judge")
    arguments = options.parse_args(argv)
    versions = VERSIONS if arguments.kafka_version == "all" else (arguments.kafka_version,)
    tallies = {version: run_seeds(version, arguments) for version in versions}
    for version, tally in tallies.items():
        print(f"{version}, seeds {arguments.seeds}: {tally}")
    return 1 if any(tally.failed for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
