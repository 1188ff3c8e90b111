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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compaction.run.sizing import Sizes
from tests.conformance.kafkas import Compared
from tests.kafka.gateway import shared_gateway
from tests.kafka.jars import REFERENCE, VERSIONS
from tests.memory import scratch
from tests.scenarios.draw import draw
from tests.scenarios.finds import printed, shrink
from tests.scenarios.language import HERE, Scenario
from tests.scenarios.runner import Way, by, on_spark


def random_sizes(seed: int, *, spark: bool = False) -> Sizes:
    """Sizes of the work, from extremely small to complete logs; on Spark large enough that starting tasks does not dominate."""
    rng = random.Random(f"sizes {seed}")
    if spark:
        return Sizes(rng.choice((4_000, 20_000, 1 << 20)), rng.choice((20_000, 200_000)), rng.choice((2, 30, 1 << 20)))
    some = (500, 2_000, 1 << 20)
    return Sizes(rng.choice(some), rng.choice(some), rng.choice((2, 30, 1 << 20)))


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

    def run(self) -> Compared:
        """Runs them, with the cleaner of the version as the judge."""
        gateway = shared_gateway(self.version)
        ours = on_spark(None, self.sizes, self.version) if self.spark else self._in_place()
        found = {f"seed{seed}": draw(seed, gateway.release) for seed in range(self.first, self.first + self.count)}
        with scratch() as root:
            return Compared(gateway, ours, self.include_active).run(root, found)

    def write_small(self, name: str, directory: Path = HERE) -> Path:
        """Writes the smallest scenario found that fails as this one does, as a file of scenarios."""
        gateway = shared_gateway(self.version)

        def fails(smaller: Scenario) -> bool:
            with scratch() as root:
                try:
                    return bool(Compared(gateway, self._in_place(), self.include_active).run(root, {"small": smaller}).failed)
                except Exception:  # noqa: BLE001 - what Kafka or the runner cannot even build is no smaller case
                    return False

        small = shrink(draw(int(name.removeprefix("seed")), gateway.release), fails)
        directory.mkdir(exist_ok=True)
        path = directory / f"{name}.txt"
        version = "" if self.version == REFERENCE else self.version
        path.write_text(printed(name, replace(small, version=version)), encoding="utf-8")
        return path

    def _in_place(self) -> Way:
        return by(self.version, self.sizes, include_active=self.include_active)


def run_seeds(version: str, options: argparse.Namespace) -> int:
    """The number of the scenarios of these seeds that differ, with the cleaner of that version as the judge."""
    first, end = (int(part) for part in options.seeds.split(":"))
    failed = 0
    for start in range(first, end, options.chunk):
        began = time.monotonic()
        batch = Batch(start, min(options.chunk, end - start), version, options.spark, options.include_active)
        found = batch.run()
        seconds = time.monotonic() - began
        print(f"{version}, seeds {start}:{start + batch.count}, {batch.sizes}: {found} ({seconds:.0f} s)", flush=True)
        for name, problems in found.failed.items():
            print(f"{name}:", *problems[:5], sep="\n  ", flush=True)
            if not options.no_shrink:
                batch.write_small(name)
        failed += len(found.failed)
    return failed


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
    failed = {version: run_seeds(version, arguments) for version in versions}
    for version, count in failed.items():
        print(f"{version}, seeds {arguments.seeds}: {count} logs differ")
    return 1 if any(failed.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
