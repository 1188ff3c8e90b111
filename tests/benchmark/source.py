"""``python -m tests.benchmark.source [MEGABYTES]``: the ``kafka_log`` data source beside Spark's own Parquet and JSON sources.

The same records in all three, on two cores, from page cache; queries in turns, medians, the log in two codecs.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from compaction.spark.session import build_session, ship_package
from compaction.spark.source import register
from tests.benchmark.generate import Profile, write_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RUNS = 3
#: what is asked: everything, a few columns, a tenth by offset
QUERIES: dict[str, tuple[str, Callable[[DataFrame, int], DataFrame]]] = {
    "all columns": (
        "key,value,topic,partition,offset,timestamp,timestampType,headers",
        lambda frame, _: frame.selectExpr("sum(length(key) + length(value) + offset)", "max(timestamp)", "count(headers)"),
    ),
    "keys and offsets": ("key,offset", lambda frame, _: frame.selectExpr("sum(length(key) + offset)")),
    "a tenth by offset": (
        "key,value,offset",
        lambda frame, end: frame.where(f"offset >= {end * 9 // 10}").selectExpr("sum(length(key) + length(value))"),
    ),
}


def main(megabytes: int) -> None:
    """Prints a table of medians."""
    spark = build_session("benchmark", extra={"spark.master": "local[2]", "spark.driver.memory": "4g"})
    ship_package(spark)
    register(spark)
    work = Path(tempfile.mkdtemp(prefix="benchmark-source-"))
    try:
        profile = Profile(total_bytes=megabytes << 20, keys=1_000_000, segment_bytes=256 << 20)
        end = write_log(work / "plain" / "topic-0", profile)
        write_log(work / "zstd" / "topic-0", Profile(**{**profile.__dict__, "codec": 4}))
        whole = spark.read.format("kafka_log").load(str(work / "plain"))
        whole.write.option("compression", "none").parquet(str(work / "parquet"))
        whole.write.option("compression", "zstd").parquet(str(work / "parquet-zstd"))
        whole.selectExpr("string(key)", "base64(value) value", "offset", "timestamp").write.json(str(work / "json"))
        print(f"{end} records, {megabytes} MB of batches, seconds (median of {RUNS})")
        for name, (columns, query) in QUERIES.items():
            frames = {
                "kafka_log": spark.read.format("kafka_log").option("columns", columns).load(str(work / "plain")),
                "kafka_log, zstd": spark.read.format("kafka_log").option("columns", columns).load(str(work / "zstd")),
                "parquet": spark.read.parquet(str(work / "parquet")),
                "parquet, zstd": spark.read.parquet(str(work / "parquet-zstd")),
            }
            if name != "all columns":
                frames["json"] = spark.read.schema("key string, value string, offset bigint").json(str(work / "json"))
            took: dict[str, list[float]] = {source: [] for source in frames}
            for _ in range(RUNS + 1):
                for source, frame in frames.items():
                    started = time.perf_counter()
                    query(frame, end).collect()
                    took[source].append(time.perf_counter() - started)
            print(f"{name:18} " + ", ".join(f"{source} {statistics.median(each[1:]):.2f}" for source, each in took.items()))
    finally:
        shutil.rmtree(work)
        spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
