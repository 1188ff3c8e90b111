"""Sequences of queries over one DataFrame: each must have the rows of the same query over a plain table of the records."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from compaction.engines.spark_session import build_session
from compaction.source.data_source import register
from tests.source.plain_consumer import EPOCH, FLAVOURS, Served, serve, write_random

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: the columns of Spark's own Kafka source with ``includeHeaders``
SCHEMA = """
    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,
    headers array<struct<key: string, value: binary>>
"""
FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
#: the queries of a sequence; ``{a}`` and ``{b}`` are conditions
QUERIES = (
    "select * from {log}",
    "select count(*) from {log}",
    "select * from {log} where {a}",
    "select * from {log} where {a} and {b}",
    "select partition, count(*), max(offset) from {log} where {a} group by partition",
    "select * from {log} where {a} union all select * from {log} where {b}",
    "select * from {log} where {a} union all select * from {log}",
    "select l.offset, r.offset, r.key from {log} l join {log} r on l.key = r.key where l.{a} and r.{b}",
    "select l.* from {log} l left anti join (select * from {log} where {a}) r on l.offset = r.offset and l.topic = r.topic",
    "select * from {log} where offset > (select min(offset) from {log} where {a})",
    "select * from {log} where {b} and offset in (select offset from {log} where {a})",
    "select * from {log} where not exists (select 1 from {log} r where r.{a} and r.offset = {log}.offset + 1)",
)
#: keeps the rows of a condition in Spark's cache from here on
CACHE = "cache {a}"


def plain_frame(spark: SparkSession, records: Iterable[Served]) -> DataFrame:
    """Records as a table without the data source."""
    rows = [
        (
            each.key, each.value, each.topic, each.partition, each.offset,
            EPOCH + timedelta(milliseconds=each.timestamp_ms), each.timestamp_type, list(each.headers) or None,
        )
        for each in records
    ]  # fmt: skip
    return spark.createDataFrame(rows, SCHEMA)


def wrong_answers(found: DataFrame, expected: DataFrame, queries: Iterable[str]) -> Iterator[str]:
    """The queries over one DataFrame that have other rows than over another, run in this order."""
    found.createOrReplaceTempView("log")
    # the rows of a view are in memory: no query plans the data source for them
    expected.createOrReplaceTempView("plain")
    spark, kept = found.sparkSession, []
    for query in queries:
        if query.startswith("cache "):
            kept.append(found.where(query.removeprefix("cache ")).cache())
            kept[-1].count()
            continue
        log, plain = (Counter(map(repr, spark.sql(query.format(log=name)).collect())) for name in ("log", "plain"))
        if log != plain:
            yield f"{query}: {log.total()} rows instead of {plain.total()}, or others"
    for frame in kept:
        frame.unpersist()


def drawn_queries(seed: int, records: list[Served], count: int) -> list[str]:
    """Queries with random conditions that some of the records meet."""
    chance = random.Random(seed)

    def condition() -> str:
        first, second = sorted(chance.choice(records).offset for _ in range(2))
        stamp = chance.choice(records).timestamp_ms
        return chance.choice(
            (
                f"offset between {first} and {second}", f"offset < {second}", f"offset >= {first}", f"offset = {first}",
                f"timestamp >= timestamp_millis({stamp})", f"timestamp < timestamp_millis({stamp})",
                f"partition = {chance.randrange(2)}", "topic like 'r%'", "key is not null",
            )
        )  # fmt: skip

    drawn = chance.choices((*QUERIES, CACHE), k=count)
    return [query.format(log="{log}", a=condition(), b=condition()) for query in drawn]


def source_session() -> SparkSession:
    """A session of this process that knows the format."""
    spark = build_session("queries", extra={"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"})
    register(spark)
    return spark


def drawn_sequence(spark: SparkSession, log_dir: Path, seed: int, count: int) -> list[str]:
    """The wrong answers of a random sequence over a random log, as read or as a view of it."""
    chance = random.Random(seed)
    path, made = write_random(log_dir, chance.choice(list(FLAVOURS)), seed)
    view = chance.choice((None, "latest"))
    records = list(serve(path, committed=view is not None, end_offset=made.last_stable_offset if view else None))
    if view is not None:
        records = list({each.key: each for each in records if each.key is not None}.values())
    found = spark.read.format("kafka_log").option("view", view) if view else spark.read.format("kafka_log")
    spark.conf.set(FILTER_PUSHDOWN, chance.choice(("true", "false")))
    columns = "key,value,topic,partition,offset,timestamp,timestampType,headers"
    rows = found.option("columns", columns).load(str(log_dir))
    return list(wrong_answers(rows, plain_frame(spark, records), drawn_queries(seed, records, count)))
