"""``python -m tools.benchmark.latest_per_key``: log in, latest record of each key out, by this job and by what else does it.

| way | reads | leaves |
| --- | --- | --- |
| Kafka's cleaner | the log | a log |
| ``jobs/compact.py``, and the same by worker processes | the log | a log |
| ``kafka_log`` and Spark SQL | the log | a table |
| Spark's Kafka source and Spark SQL | a running broker | a table |
| DuckDB, Polars | a Parquet export of the log | a table |

Complete processes, alternating, from the page cache; CPU time and memory include all child processes, but not the broker's. The
tables are compared with each other, the logs byte for byte. Meaningful only on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyspark

from tests.kafka.broker import Broker, host_partition
from tests.kafka.clients import Clients
from tests.kafka.gateway import Gateway
from tools.benchmark.__main__ import _JOB, apart, copied, warm
from tools.benchmark.contenders import TOPIC
from tools.benchmark.machine import machine
from tools.benchmark.outputs import compare
from tools.benchmark.processes import ROOT, SUBMIT, Spent, adopt_orphans, timed
from tools.benchmark.profiles import Case, cases, prepared, say

KAFKA, JOB, LOCAL = "Kafka's cleaner", "spark-submit jobs/compact.py", "kafka-log-compaction compact --engine local"
SOURCE, BROKER = "kafka_log, max_by", "Spark's Kafka source, max_by"
EXPORT, DUCKDB, POLARS = "export to Parquet", "DuckDB, on the export", "Polars, on the export"
_TABLES = (SOURCE, BROKER, DUCKDB, POLARS)
#: Spark's default of 1 GiB is too little for 46 M keys
_DRIVER_MEMORY = "6g"
#: the newest in the registries; it works with Spark 4.3.0
_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"


@dataclass
class Way:
    """One way: what each run took, and what came out."""

    spent: list[Spent] = field(default_factory=list)
    outcome: str = ""

    def row(self, name: str) -> str:
        """A row of the table."""
        wall_s, cpu_s, peak_mib = (statistics.median(values) for values in zip(*self.spent, strict=True))
        return f"| {name} | {wall_s:.1f} | {cpu_s:.1f} | {peak_mib:.0f} | {self.outcome} |"


class Bench:
    """All ways on one log."""

    def __init__(self, case: Case, pristine: Path, work: Path) -> None:
        self._case, self._pristine, self._work = case, pristine, work

    def ways(self) -> dict[str, Callable[[], Spent]]:
        """In this order in each round; the export precedes those that read it."""
        return {
            KAFKA: self._kafka,
            JOB: partial(self._job, JOB, SUBMIT, "jobs/compact.py"),
            LOCAL: partial(self._job, LOCAL, SUBMIT.with_name("kafka-log-compaction"), "compact", "--engine", "local"),
            SOURCE: partial(self._table, SOURCE, "source", self._pristine),
            BROKER: self._broker,
            EXPORT: partial(self._table, EXPORT, "export", self._pristine),
            DUCKDB: partial(self._table, DUCKDB, "duckdb", self._place(EXPORT)),
            POLARS: partial(self._table, POLARS, "polars", self._place(EXPORT)),
        }

    def outcome(self, name: str, done: dict[str, Way]) -> str:
        """What came out.

        :raises AssertionError: something else than from another way
        """
        if name == KAFKA:
            return "log"
        if name in (JOB, LOCAL):
            same = f", {apart(compare, self._place(KAFKA), self._place(name), compressed=False)}" if KAFKA in done else ""
            return f"log{same}"
        if name == EXPORT:
            return "all records"
        found = _content(self._place(name))
        others = {done[each].outcome for each in _TABLES if each in done and done[each].outcome}
        assert others <= {found}, f"{name}: {found}, others: {others}"
        return found

    def _place(self, name: str) -> Path:
        return self._work / "".join(letter for letter in name if letter.isalnum())

    def _kafka(self) -> Spent:
        place = copied(self._pristine, self._place(KAFKA))
        return timed(sys.executable, "-m", "tools.benchmark.kafka_process", place, self._case.name, memory=True)

    def _job(self, name: str, *command: str | Path) -> Spent:
        place = copied(self._pristine, self._place(name))
        return timed(*command, "--log-dir", place, *_JOB, memory=True)

    def _table(self, name: str, contender: str, source: Path | str, *options: str) -> Spent:
        place = self._place(name)
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        spark = contender in ("source", "export", "broker")
        command = [str(SUBMIT), "--driver-memory", _DRIVER_MEMORY, *options] if spark else [sys.executable]
        script = Path(__file__).with_name("contenders.py")
        settings = {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
        return timed(*command, script, contender, source, place, memory=True, environment=settings)

    def _broker(self) -> Spent:
        with _serving(self._pristine / f"{TOPIC}-0", self._work / "broker") as broker:
            return self._table(BROKER, "broker", broker.bootstrap, "--packages", _CONNECTOR)


@contextmanager
def _serving(partition: Path, log_dir: Path) -> Iterator[Broker]:
    """A broker that has this partition."""
    shutil.rmtree(log_dir, ignore_errors=True)
    with Broker(log_dir) as broker:
        gateway = Gateway()
        Clients(gateway, broker.bootstrap).create_topic(TOPIC, config={"retention.ms": "-1"})
        gateway.close()
    host_partition(log_dir, partition)
    warm(log_dir)
    try:
        with Broker(log_dir) as broker:
            yield broker
    finally:
        shutil.rmtree(log_dir)


def _content(parquet: Path) -> str:
    """Keys and sum of offsets of a table."""
    offsets = ds.dataset(parquet, format="parquet").to_table(columns=["offset"])["offset"]
    return f"table of {len(offsets)} keys, offsets {pc.sum(offsets)}"


def measure(bench: Bench, chosen: dict[str, Callable[[], Spent]], runs: int) -> dict[str, Way]:
    """The ways alternating; results are compared in the first round."""
    done: dict[str, Way] = {}
    for number in range(runs):
        for name, run in chosen.items():
            spent = run()
            say(f"{name}: {spent.wall_s:.1f} s, CPU {spent.cpu_s:.1f} s, {spent.peak_mib:.0f} MiB")
            way = done.setdefault(name, Way())
            way.spent.append(spent)
            if number == 0:
                way.outcome = bench.outcome(name, done)
    return done


def main() -> None:
    """Print a table for each log."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark.latest_per_key", description="Ways to the latest record.")
    parser.add_argument("--cases", default="h,g", help="comma-separated cases of tools.benchmark (default: %(default)s)")
    parser.add_argument("--ways", default="", help="comma-separated beginnings of names (default: all)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies sizes and keys")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("build/benchmark"))
    options = parser.parse_args()
    missing = [name for name in ("duckdb", "polars") if find_spec(name) is None]
    if missing:
        raise SystemExit(f"missing: {', '.join(missing)}; pip install -c constraints.txt -e '.[bench]'")
    adopt_orphans()
    root = options.work.resolve() / f"{options.scale:g}"
    for name in options.cases.split(","):
        case = cases(options.scale)[name]
        pristine = apart(prepared, case, root)
        bench = Bench(case, pristine, root / "work")
        wanted = tuple(options.ways.split(","))
        chosen = {way: run for way, run in bench.ways().items() if way.startswith(wanted)}
        done = measure(bench, chosen, options.runs)
        print(f"\n{case.title}\n\n| way | s | CPU, s | peak MiB | leaves |\n| --- | --- | --- | --- | --- |")
        print("\n".join(way.row(each) for each, way in done.items()))
        print(f"\nMedians of {options.runs}; {machine()}; Spark {pyspark.__version__}.", flush=True)
        shutil.rmtree(root / "work")


if __name__ == "__main__":
    main()
