"""``compaction.read``: the records of log directories at rest as a DataFrame of the caller's Spark session."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from compaction.engine_choice import ship
from compaction.options.values import Texts, texts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(
    spark: SparkSession,
    log_dirs: Texts,
    *,
    topics: Texts = (),
    partitions: Texts = (),
    view: str | None = None,
    columns: Texts = (),
    options: Mapping[str, Any] = MappingProxyType({}),
) -> DataFrame:
    """The records of log directories; the session gets the data source ``kafka_log``, and its workers this package.

    >>> compaction.read(spark, log_dir, topics="orders", view="latest").count()
    3

    :param topics: regular expressions for complete names of topics; by default all topics
    :param partitions: partitions as ``TOPIC-N``, in addition to the topics
    :param view: ``latest``: only the newest record of each key; by default all records
    :param columns: the columns to decode; by default all
    :param options: other options of the data source (``compaction.source.read_plan.OPTIONS``)
    :raises UsageError: an option is invalid, or there is no such topic
    """
    from compaction.source.data_source import FORMAT, register

    register(spark)
    ship(spark)
    lists = {"topic": " ".join(texts(topics)), "partition": " ".join(texts(partitions)), "columns": ",".join(texts(columns))}
    given = {name: value for name, value in {**lists, "view": view}.items() if value}
    return spark.read.format(FORMAT).options(**{**given, **options}).load(texts(log_dirs))
