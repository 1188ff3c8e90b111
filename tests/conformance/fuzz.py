"""The fuzzer: random logs cleaned by Kafka's own ``UnifiedLog`` and ``Cleaner`` and by the job; the results must be equal.

``python -m tests.conformance.fuzz --seeds 0:2000`` runs the stories of these seeds. A failing story is reduced and written to
``tests/conformance/cases``, where the tests find it. With ``--spark`` the job runs on Spark, else in this process.
``--kafka-version 3.1.2`` has the cleaner of that version as the judge, and the job follows its rules; ``--kafka-version all``
runs the seeds once for each version and ends with a line for each.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compaction.report import LogReport
from compaction.run.sizing import Sizes
from tests.conformance.fuzz_bench import FuzzBench, OurJob, Progress
from tests.conformance.shrink import shrink
from tests.conformance.stories import Story, random_story
from tests.kafka.gateway import Gateway, shared_gateway
from tests.kafka.jars import REFERENCE, VERSIONS
from tests.local_job import TopicConfigs, clean_locally, clean_on_spark
from tests.memory import scratch

CASES = Path(__file__).resolve().parent / "cases"


@dataclass(frozen=True)
class Tally:
    """The result of a run of the fuzzer."""

    stories: int = 0
    rounds: int = 0
    cleaned: int = 0
    refused: int = 0
    expired: int = 0
    failed: tuple[Progress, ...] = ()

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.stories + other.stories,
            self.rounds + other.rounds,
            self.cleaned + other.cleaned,
            self.refused + other.refused,
            self.expired + other.expired,
            self.failed + other.failed,
        )

    def __str__(self) -> str:
        return (
            f"{self.stories} logs, {self.rounds} rounds, {self.cleaned} of them cleaned, {self.refused} logs refused by both,"
            f" {self.expired} segments expired, {len(self.failed)} logs differ"
        )


def random_sizes(seed: int, *, spark: bool = False) -> Sizes:
    """Sizes of the work, from extremely small to complete logs; on Spark large enough that starting tasks does not dominate."""
    rng = random.Random(f"sizes {seed}")
    if spark:
        return Sizes(rng.choice((4_000, 20_000, 1 << 20)), rng.choice((20_000, 200_000)), rng.choice((2, 30, 1 << 20)))
    some = (500, 2_000, 1 << 20)
    return Sizes(rng.choice(some), rng.choice(some), rng.choice((2, 30, 1 << 20)))


def local_job(sizes: Sizes | None = None, *, include_active: bool = False, version: str = REFERENCE) -> OurJob:
    """The job in this process, by the rules of that version."""

    def job(log_dir: Path, now_ms: int, topics: TopicConfigs) -> Mapping[str, LogReport]:
        return clean_locally(log_dir, now_ms, topics, sizes, include_active=include_active, kafka_version=version)

    return job


def run_stories(gateway: Gateway, root: Path, stories: Sequence[Story], job: OurJob, *, include_active: bool = False) -> Tally:
    """All stories, side by side; ``include_active`` says that the job cleans last segments too."""
    outcome = FuzzBench(gateway, root, stories, job, include_active=include_active).run()
    return Tally(
        len(stories),
        sum(len(story.turns) for story in stories),
        sum(each.cleaned for each in outcome.values()),
        sum(each.refused for each in outcome.values()),
        sum(each.expired for each in outcome.values()),
        tuple(each for each in outcome.values() if each.problems),
    )


def make_small(gateway: Gateway, story: Story, sizes: Sizes | None, *, include_active: bool = False) -> Story:
    """The smallest story found that still fails."""

    def fails(smaller: Story) -> bool:
        with scratch() as root:
            try:
                job = local_job(sizes, include_active=include_active, version=gateway.version)
                return bool(run_stories(gateway, root, [smaller], job, include_active=include_active).failed)
            except Exception:  # noqa: BLE001 - what Kafka or the bench cannot even build is no smaller case
                return False

    return shrink(story, fails)


@dataclass(frozen=True)
class Batch:
    """Stories that the job cleans in one run; ``first`` also decides the sizes of its work."""

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
        stories = [random_story(seed, gateway.release) for seed in range(self.first, self.first + self.count)]
        job = local_job(self.sizes, include_active=self.include_active, version=self.version)
        if self.spark:
            job = clean_on_spark(self.sizes, kafka_version=self.version)
        with scratch() as root:
            return run_stories(gateway, root, stories, job, include_active=self.include_active)

    def write_small(self, story: Story, cases: Path = CASES) -> Path:
        """Writes the smallest story found that fails as this one does, as a case."""
        small = make_small(shared_gateway(self.version), story, self.sizes, include_active=self.include_active)
        cases.mkdir(exist_ok=True)
        path = cases / f"{story.name}.json"
        replace(small, version=self.version).write(path)
        return path


def run_seeds(version: str, options: argparse.Namespace) -> Tally:
    """The stories of these seeds, with the cleaner of that version as the judge."""
    first, end = (int(part) for part in options.seeds.split(":"))
    tally = Tally()
    for start in range(first, end, options.chunk):
        began = time.monotonic()
        batch = Batch(start, min(options.chunk, end - start), version, options.spark, options.include_active)
        tally += (found := batch.run())
        seconds = time.monotonic() - began
        print(f"{version}, seeds {start}:{start + batch.count}, {batch.sizes}: {found} ({seconds:.0f} s)", flush=True)
        for each in found.failed:
            print(f"{each.story.name}:", *each.problems[:5], sep="\n  ", flush=True)
            if not options.no_shrink:
                batch.write_small(each.story)
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
