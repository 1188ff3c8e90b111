"""``python -m tools.benchmark.contenders NAME INPUT OUTPUT``: one way to the latest record of each key, in its own process.

Those that make a table write the columns ``key``, ``value`` and ``offset`` as uncompressed Parquet. ``spark`` and ``source``
are applications for ``spark-submit``; ``export`` makes the Parquet files that DuckDB and Polars read, with Spark and the
``kafka_log`` data source, because neither reads a log.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "bench"
#: as many as the machine has cores
THREADS = 2


def _latest(frame: DataFrame, output: str) -> None:
    from pyspark.sql.functions import expr

    latest = frame.groupBy("key").agg(expr("max_by(value, offset) value"), expr("max(offset) offset"))
    latest.write.option("compression", "none").parquet(output)


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def _log(log_dir: str, columns: str) -> DataFrame:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from compaction.source.data_source import register

    spark = _session()
    register(spark)
    return spark.read.format("kafka_log").option("columns", columns).load(log_dir)


def source(log_dir: str, output: str) -> None:
    """The project's data source, and Spark SQL's ``max_by``."""
    _latest(_log(log_dir, "key,value,offset"), output)


def broker(bootstrap: str, output: str) -> None:
    """Spark's own Kafka source, reading from a broker, and Spark SQL's ``max_by``."""
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}
    frame = _session().read.format("kafka").options(**options, minPartitions=str(THREADS)).load()
    _latest(frame, output)


def export(log_dir: str, output: str) -> None:
    """A log as Parquet files."""
    _log(log_dir, "key,value,offset").select("key", "value", "offset").write.option("compression", "none").parquet(output)


def duckdb(parquet: str, output: str) -> None:
    """DuckDB's ``arg_max``."""
    import duckdb as database

    with database.connect() as connection:
        connection.execute(f"SET threads = {THREADS}")
        latest = connection.read_parquet(f"{parquet}/*.parquet").aggregate(
            'key, arg_max(value, "offset") AS value, max("offset") AS "offset"', "key"
        )
        latest.write_parquet(output, compression="uncompressed")


def polars(parquet: str, output: str) -> None:
    """Polars' streaming engine."""
    import polars as pl

    latest = (pl.col("value").get(pl.col("offset").arg_max()), pl.col("offset").max())
    frame = pl.scan_parquet(f"{parquet}/*.parquet").group_by("key").agg(*latest)
    frame.sink_parquet(output, compression="uncompressed", engine="streaming")


_WAYS = (source, broker, export, duckdb, polars)
CONTENDERS: Mapping[str, Callable[[str, str], None]] = {each.__name__: each for each in _WAYS}

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    CONTENDERS[sys.argv[1]](sys.argv[2], sys.argv[3])
