"""``compaction.read``: the records of log directories at rest as a DataFrame of the caller's Spark session; ``read_arrow``: as
batches of Arrow, in this process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from compaction.engine_choice import ship
from compaction.options.values import Texts, texts

if TYPE_CHECKING:
    import pyarrow as pa
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
    given = _options(topics, partitions, view, columns)
    return spark.read.format(FORMAT).options(**{**given, **options}).load(texts(log_dirs))


def read_arrow(
    log_dirs: Texts,
    topics: Texts = (),
    *,
    partitions: Texts = (),
    view: str | None = None,
    columns: Texts = (),
    options: Mapping[str, Any] = MappingProxyType({}),
) -> pa.RecordBatchReader:
    """The records of log directories as batches of Arrow, log by log, which DuckDB, Polars and pandas take. It needs no JVM.

    >>> compaction.read_arrow(log_dir, "orders", view="latest").read_all().num_rows
    3

    The reader decodes a batch when it is asked for; use it once. Its memory does not grow with the log.

    :param topics: as for ``read``, like the others
    :raises UsageError: an option is invalid, or there is no such topic
    :raises StorageError: by the reader: a file was changed since
    """
    from compaction.source.arrow import read_batches

    given = _options(topics, partitions, view, columns)
    # as Spark writes the values of options
    others = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return read_batches({"paths": json.dumps(texts(log_dirs)), **given, **others})


def _options(topics: Texts, partitions: Texts, view: str | None, columns: Texts) -> dict[str, str]:
    lists = {"topic": " ".join(texts(topics)), "partition": " ".join(texts(partitions)), "columns": ",".join(texts(columns))}
    return {name: value for name, value in {**lists, "view": view}.items() if value}
