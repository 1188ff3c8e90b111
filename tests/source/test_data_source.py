"""The data source ``kafka_log`` in a Spark session: the records of real consumers, whatever was queried before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality
from chispa.schema_comparer import assert_schema_equality

from compaction.source.data_source import register
from tests.golden import unpack_sample
from tests.kafka.broker import Broker
from tests.kafka.clients import Clients, Consumed
from tests.kafka.encode import Batch, Record
from tests.kafka.gateway import Gateway
from tests.source.plain_consumer import Served, serve, served
from tests.source.query_sequences import FILTER_PUSHDOWN, QUERIES, SCHEMA, drawn_sequence, plain_frame, wrong_answers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


pytestmark = pytest.mark.spark

TOPICS = ("orders", "customers", "prices", "payments", "payments-open", "sessions", "inventory", "__consumer_offsets")
LEVELS = ("read_uncommitted", "read_committed")


@pytest.fixture(scope="module")
def source(spark: SparkSession) -> SparkSession:
    """The session, which knows the format."""
    register(spark)
    return spark


def rows_of(found: DataFrame) -> list[Served]:
    """Its records, in order."""
    return sorted(served(row.asDict(recursive=True)) for row in found.collect())


def test_the_schema_is_that_of_sparks_kafka_source(source: SparkSession, sample: Path) -> None:
    found = source.read.format("kafka_log").load(str(sample))
    assert_schema_equality(found.schema, source.createDataFrame([], SCHEMA).schema)


@pytest.mark.slow
@pytest.mark.kafka
def test_data_frames_have_the_records_of_a_real_consumer(source: SparkSession, gateway: Gateway, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    with Broker(log_dir) as broker:
        clients = Clients(gateway, broker.bootstrap)
        consumed = {
            (topic, level): clients.read_all(topic, committed_only=level == "read_committed")
            for topic in TOPICS
            for level in LEVELS
        }
    for level in LEVELS:
        records = [each for topic in TOPICS for each in as_served(topic, consumed[topic, level])]
        found = rows_of(source.read.format("kafka_log").option("isolation.level", level).load(str(log_dir)))
        # consumers do not say which kind a timestamp is
        assert [row._replace(timestamp_type=0) for row in found if row.topic in TOPICS] == sorted(records)
    assert len(consumed["payments", "read_committed"]) < len(consumed["payments", "read_uncommitted"])
    assert len(consumed["payments-open", "read_committed"]) < len(consumed["payments-open", "read_uncommitted"])


def as_served(topic: str, records: Iterable[Consumed]) -> list[Served]:
    return [Served(topic, r.partition, r.offset, r.timestamp, 0, r.key, r.value, r.headers) for r in records]


def test_a_chosen_schema_reads_only_its_columns(source: SparkSession, sample: Path) -> None:
    found = source.read.format("kafka_log").schema("offset bigint, headers array<struct<key: string, value: binary>>")
    rows = found.load(str(sample / "orders-0")).orderBy("offset")
    expected = plain_frame(source, serve(sample / "orders-0")).select("offset", "headers").orderBy("offset")
    assert_df_equality(rows, expected)


def test_several_directories_are_one_data_frame(source: SparkSession, sample: Path) -> None:
    found = source.read.format("kafka_log").load([str(sample / "orders-0"), str(sample / "ledger-0")])
    assert rows_of(found) == sorted([*serve(sample / "orders-0"), *serve(sample / "ledger-0")])


def test_sql_reads_the_source(source: SparkSession, sample: Path) -> None:
    source.sql(f"create or replace temporary view orders using kafka_log options (path '{sample}', topic 'orders')")
    latest = source.sql("select count(distinct key) as keys, max(offset) as last from orders where partition = 0").first()
    records = list(serve(sample / "orders-0"))
    assert latest is not None
    assert (latest["keys"], latest["last"]) == (len({record.key for record in records}), records[-1].offset)


def test_an_error_of_the_source_reaches_the_user(source: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no such log directory"):
        source.read.format("kafka_log").load(str(tmp_path / "nothing")).count()


A, B = "offset < 20", "offset between 30 and 39"


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, which passes filters to Python data sources."""
    register(spark)
    before = str(spark.conf.get(FILTER_PUSHDOWN))
    spark.conf.set(FILTER_PUSHDOWN, "true")
    yield spark
    spark.conf.set(FILTER_PUSHDOWN, before)


def test_a_query_does_not_keep_an_earlier_querys_filter(pushing: SparkSession, sample: Path) -> None:
    frame = pushing.read.format("kafka_log").load(str(sample / "orders-0"))
    plain = plain_frame(pushing, serve(sample / "orders-0"))
    queries = [query.format(log="{log}", a=A, b=B) for query in (QUERIES[2], QUERIES[1], QUERIES[5], QUERIES[8])]
    assert list(wrong_answers(frame, plain, [*queries, f"cache {B}", queries[1]])) == []


def test_a_filter_beyond_the_year_9999_selects_rows(spark: SparkSession, tmp_log_dir: Path) -> None:
    log = tmp_log_dir / "orders-0"
    log.mkdir()
    records = (Record(0, 1, b"k", b"v"), Record(1, 568_971_820_800_000, b"k", b"v"))
    (log / f"{0:020d}.log").write_bytes(Batch(records).encode())
    register(spark)
    late = spark.read.format("kafka_log").load(str(log)).where("timestamp >= timestamp'+20000-01-01 00:00:00'")
    assert [tuple(row) for row in late.selectExpr("offset", "unix_millis(timestamp)").collect()] == [(1, 568_971_820_800_000)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_random_sequences_have_the_rows_of_a_plain_table(pushing: SparkSession, tmp_log_dir: Path, seed: int) -> None:
    assert drawn_sequence(pushing, tmp_log_dir, seed, 8) == []


_READS = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
read = spark.read.format("kafka_log").option("topic", "orders")
print(read.load(sys.argv[1]).where("offset > 5").count())
from compaction.source.data_source import register
settings = spark.conf.getAll
register(spark)
print(read.load(sys.argv[1]).where("offset > 5").count(), spark.conf.getAll == settings)
"""


@pytest.mark.slow
def test_the_format_is_found_without_register_which_sets_nothing(sample: Path, tmp_path: Path) -> None:
    called = [sys.executable, "-c", _READS, str(sample)]
    # Spark looks with the first python3, as it does in an activated environment
    activated = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(called, cwd=tmp_path, env=activated, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    found, registered, unchanged = done.stdout.split()
    assert int(found) == int(registered) > 100
    assert unchanged == "True"
