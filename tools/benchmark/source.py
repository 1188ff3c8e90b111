"""``python -m tools.benchmark.source``: the ``kafka_log`` data source compared with Spark's own Parquet and JSON sources, and
its view of the newest record of each key with Spark SQL's ``max_by`` and ``row_number`` over the same log.

The same records in all of them, from the page cache, on two cores. The sources alternate, and their results are compared.
Besides the elapsed time, the table has the CPU time of Spark's JVM and its Python workers together, which varies less under
other load.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from pyspark.sql.functions import expr

from compaction.engines.spark_session import build_session, ship_package
from compaction.source.data_source import register
from tools.benchmark.generate import Profile, write_log
from tools.benchmark.machine import machine
from tools.benchmark.memory import JVM, WORKER, Peaks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ZSTD = 4


@dataclass(frozen=True)
class Query:
    """A query: its name, the columns it uses, a function that runs it, and the part of the offsets that it does not read."""

    name: str
    columns: str
    ask: Callable[[DataFrame], DataFrame]
    skipped: Fraction = Fraction(0)

    def first_offset(self, end: int) -> int:
        """The first offset that it reads of a log of ``end``."""
        return int(end * self.skipped)


QUERIES = (
    Query(
        "all columns",
        "key,value,topic,partition,offset,timestamp,timestampType,headers",
        lambda frame: frame.selectExpr(
            "sum(length(key) + length(value) + length(topic) + partition + offset + timestampType)",
            "max(timestamp)",
            "count(headers)",
        ),
    ),
    Query("keys and values", "key,value", lambda frame: frame.selectExpr("sum(length(key) + length(value))")),
    Query("records of each key", "key", lambda frame: frame.groupBy("key").count().selectExpr("max(count)", "count(1)")),
    Query(
        "a tenth by offset",
        "key,value,offset",
        lambda frame: frame.selectExpr("sum(length(key) + length(value))"),
        Fraction(9, 10),
    ),
)


#: of the newest record of each key
_NEWEST = "count(*) n", "sum(length(value)) bytes", "sum(offset) offsets", "sum(superseded) older"
#: ways to it, from the log and from the source's own view
VIEWS: Mapping[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "`view=latest`": lambda _, latest: latest,
    "`max_by`": lambda log, _: log.groupBy("key").agg(
        expr("max_by(value, offset) value"), expr("max(offset) offset"), expr("count(*) - 1 superseded")
    ),
    "`row_number`": lambda log, _: log.selectExpr(
        "*", "row_number() over (partition by key order by offset desc) place",
        "count(*) over (partition by key) - 1 superseded",
    ).where("place = 1"),
}  # fmt: skip


@dataclass
class Timed:
    """One query on one source: elapsed and CPU seconds of every run; the result."""

    passed_s: list[float] = field(default_factory=list)
    cores_s: list[float] = field(default_factory=list)
    answer: str = ""

    def run(self, query: Callable[[], Sequence[object]]) -> None:
        """One run."""
        cores, started = core_seconds(), time.perf_counter()
        self.answer = str(query())
        self.passed_s.append(time.perf_counter() - started)
        self.cores_s.append(core_seconds() - cores)

    def __str__(self) -> str:
        return f"{statistics.median(self.passed_s):.2f} ({statistics.median(self.cores_s):.2f})"


def core_seconds() -> float:
    """CPU seconds of this process and its children so far."""
    own = psutil.Process()
    found = 0.0
    for process in [own, *own.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        found += times.user + times.system + times.children_user + times.children_system
    return found


def write_sources(spark: SparkSession, work: Path, megabytes: int) -> int:
    """The log, plain and compressed, and its records as files of Spark's own sources; the log end offset."""
    profile = Profile(total_bytes=megabytes << 20, keys=1_000_000, segment_bytes=256 << 20)
    end = write_log(work / "plain" / "topic-0", profile)
    write_log(work / "zstd" / "topic-0", replace(profile, codec=_ZSTD))
    whole = spark.read.format("kafka_log").load(str(work / "plain"))
    whole.write.option("compression", "none").parquet(str(work / "parquet"))
    whole.write.option("compression", "zstd").parquet(str(work / "parquet-zstd"))
    whole.selectExpr("string(key)", "base64(value) value", "offset").write.json(str(work / "json"))
    return end


def frames_for(spark: SparkSession, work: Path, query: Query, end: int) -> dict[str, DataFrame]:
    """The sources that can run a query. JSON has neither binary values nor headers, and gets only the other queries."""
    first = query.first_offset(end)
    log = spark.read.format("kafka_log").option("columns", query.columns).option("startingOffset", first)
    frames = {
        "parquet": spark.read.parquet(str(work / "parquet")),
        "parquet, zstd": spark.read.parquet(str(work / "parquet-zstd")),
    }
    if query.name != "all columns":
        frames["json"] = spark.read.schema("key string, value string, offset bigint").json(str(work / "json"))
    selected = {name: frame.where(f"offset >= {first}") if first else frame for name, frame in frames.items()}
    return {"kafka_log": log.load(str(work / "plain")), "kafka_log, zstd": log.load(str(work / "zstd")), **selected}


def measure(frames: Mapping[str, DataFrame], query: Query, runs: int) -> dict[str, Timed]:
    """The sources alternating, after a warm-up run of each.

    :raises ValueError: sources of the same values have different results
    """
    timed = {source: Timed() for source in frames}
    for _ in range(runs + 1):
        for source, frame in frames.items():
            timed[source].run(query.ask(frame).collect)
    for each in timed.values():
        del each.passed_s[0], each.cores_s[0]
    answers = {source: each.answer for source, each in timed.items() if source != "json"}
    if len(set(answers.values())) > 1:
        raise ValueError(f"{query.name}: the sources differ: {answers}")
    return timed


def measure_views(spark: SparkSession, log_dir: str, runs: int) -> dict[str, str]:
    """Rows of a table: the ways to the newest record of each key alternating, after a warm-up run of each.

    :raises ValueError: they have different results
    """
    read = spark.read.format("kafka_log")
    log = read.option("columns", "key,value,offset").load(log_dir)
    latest = read.option("columns", "value,offset,superseded").option("view", "latest").load(log_dir)
    timed = {way: Timed() for way in VIEWS}
    peaks: dict[str, list[float]] = {way: [] for way in VIEWS}
    for _ in range(runs + 1):
        for way, frame in VIEWS.items():
            with Peaks() as found:
                timed[way].run(frame(log, latest).selectExpr(*_NEWEST).collect)
            peaks[way].append(found.mib[WORKER] + found.mib[JVM])
    for each in timed.values():
        del each.passed_s[0], each.cores_s[0]
    if len({each.answer for each in timed.values()}) > 1:
        raise ValueError(f"newest record of each key: the ways differ: {[each.answer for each in timed.values()]}")
    return {way: f"| {way} | {each} | {statistics.median(peaks[way][1:]):.0f} |" for way, each in timed.items()}


def main(megabytes: int, runs: int, place: str | None) -> None:
    """Prints a table of medians."""
    spark = build_session("benchmark", extra={"spark.master": "local[2]", "spark.driver.memory": "4g"})
    ship_package(spark)
    register(spark)
    work = Path(tempfile.mkdtemp(prefix="benchmark-source-", dir=place))
    try:
        end = write_sources(spark, work, megabytes)
        print(f"{end} records, {megabytes} MiB of batches, Spark {spark.version}, on {machine()}")
        print(f"seconds that passed, and in brackets those of cores: medians of {runs}\n")
        sources = ["kafka_log", "kafka_log, zstd", "parquet", "parquet, zstd", "json"]
        print(f"| query | {' | '.join(sources)} |\n| --- |{' --- |' * len(sources)}")
        for query in QUERIES:
            timed = measure(frames_for(spark, work, query, end), query, runs)
            print(f"| {query.name} | {' | '.join(str(timed.get(source, '')) for source in sources)} |", flush=True)
        print("\n| newest record of each key | seconds | a worker and the JVM, MiB |\n| --- | --- | --- |")
        print("\n".join(measure_views(spark, str(work / "plain"), runs).values()))
    finally:
        shutil.rmtree(work)
        spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark.source", description="The data source beside Spark's own.")
    parser.add_argument("--megabytes", type=int, default=1000, help="of batches, uncompressed (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="of each query on each source (default: %(default)s)")
    parser.add_argument("--work", help="where the data goes meanwhile, five times as much (default: the temporary directory)")
    given = parser.parse_args()
    main(given.megabytes, given.runs, given.work)
