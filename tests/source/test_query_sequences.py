"""No query over a DataFrame depends on an earlier one, whatever the session has set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import datasource

from compaction.source.data_source import KafkaLogReader, register
from tests.kafka.encode import Batch, Record
from tests.source.plain_consumer import serve
from tests.source.query_sequences import FILTER_PUSHDOWN, QUERIES, drawn_sequence, plain_frame, wrong_answers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

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


def test_the_reader_takes_no_filters() -> None:
    base = datasource.DataSourceReader
    assert getattr(KafkaLogReader, "pushFilters", None) is getattr(base, "pushFilters", None)
