"""Filters taken over by the data source: what each narrows the reading to, and which ones are left to Spark."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql import datasource as ds

from compaction.names import TopicPartition
from compaction.source.pushed_filters import push_filters
from compaction.source.read_columns import MAX_LONG, MIN_LONG, Bounds

if not hasattr(ds, "EqualTo"):
    pytest.skip("PySpark 4.0 tells a data source nothing about filters", allow_module_level=True)

OFFSET, TIME, TOPIC, PARTITION = ("offset",), ("timestamp",), ("topic",), ("partition",)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def at(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def offsets(first: int = MIN_LONG, last: int = MAX_LONG) -> Bounds:
    return Bounds(first, last)


def times(first: int = MIN_LONG, last: int = MAX_LONG) -> Bounds:
    return Bounds(MIN_LONG, MAX_LONG, first, last)


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        (ds.EqualTo(OFFSET, 7), offsets(7, 7)),
        (ds.EqualNullSafe(OFFSET, 7), offsets(7, 7)),
        (ds.GreaterThan(OFFSET, 7), offsets(8)),
        (ds.GreaterThanOrEqual(OFFSET, 7), offsets(7)),
        (ds.LessThan(OFFSET, 7), offsets(last=6)),
        (ds.LessThanOrEqual(OFFSET, 7), offsets(last=7)),
        # a record's time is a whole number of milliseconds
        (ds.EqualTo(TIME, at(5000)), times(5, 5)),
        (ds.EqualTo(TIME, at(5001)), times(6, 5)),
        (ds.GreaterThan(TIME, at(5000)), times(6)),
        (ds.GreaterThan(TIME, at(4999)), times(5)),
        (ds.GreaterThanOrEqual(TIME, at(5000)), times(5)),
        (ds.GreaterThanOrEqual(TIME, at(5001)), times(6)),
        (ds.LessThan(TIME, at(5000)), times(last=4)),
        (ds.LessThan(TIME, at(5001)), times(last=5)),
        (ds.LessThanOrEqual(TIME, at(5000)), times(last=5)),
        (ds.LessThanOrEqual(TIME, at(4999)), times(last=4)),
        (ds.LessThan(TIME, at(-1)), times(last=-1)),
        (ds.GreaterThan(TIME, at(-1001)), times(-1)),
    ],
)
def test_offset_and_time_become_exact_bounds(given: Any, bounds: Bounds) -> None:
    pushed, rest = push_filters([given])
    assert (pushed.bounds, pushed.logs, rest) == (bounds, (), [])


def test_a_list_of_offsets_narrows_the_read_and_spark_applies_it_too() -> None:
    given = ds.In(OFFSET, (9, 3, 5))
    pushed, rest = push_filters([given])
    assert pushed.bounds == offsets(3, 9)
    assert rest == [given]


def test_all_conditions_hold_together() -> None:
    given = [ds.GreaterThan(OFFSET, 3), ds.LessThan(OFFSET, 9), ds.GreaterThanOrEqual(OFFSET, 1), ds.LessThan(TIME, at(0))]
    pushed, rest = push_filters(given)
    assert pushed.bounds == Bounds(4, 8, MIN_LONG, -1)
    assert rest == []


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (ds.EqualTo(TOPIC, "orders"), ["orders-0", "orders-3"]),
        (ds.Not(ds.EqualTo(TOPIC, "orders")), ["old-orders-0", "prices-3"]),
        (ds.In(TOPIC, ("prices", "old-orders")), ["old-orders-0", "prices-3"]),
        (ds.StringStartsWith(TOPIC, "o"), ["orders-0", "orders-3", "old-orders-0"]),
        (ds.StringEndsWith(TOPIC, "orders"), ["orders-0", "orders-3", "old-orders-0"]),
        (ds.StringContains(TOPIC, "d-o"), ["old-orders-0"]),
        (ds.EqualTo(PARTITION, 3), ["orders-3", "prices-3"]),
        (ds.GreaterThan(PARTITION, 0), ["orders-3", "prices-3"]),
        (ds.LessThanOrEqual(PARTITION, 0), ["orders-0", "old-orders-0"]),
        (ds.Not(ds.In(PARTITION, (0, 1))), ["orders-3", "prices-3"]),
    ],
)
def test_topic_and_partition_select_logs(given: Any, taken: list[str]) -> None:
    pushed, rest = push_filters([given])
    logs = [TopicPartition(*log) for log in (("orders", 0), ("orders", 3), ("old-orders", 0), ("prices", 3))]
    assert [str(log) for log in logs if pushed.takes(log)] == taken
    assert rest == []


@pytest.mark.parametrize(
    "given",
    [
        ds.EqualTo(("key",), b"k"),
        ds.IsNull(OFFSET),
        ds.IsNotNull(("value",)),
        ds.Not(ds.EqualTo(OFFSET, 3)),
        ds.Not(ds.IsNotNull(OFFSET)),
        ds.EqualNullSafe(TOPIC, None),
        ds.In(TOPIC, ("orders", None)),
        ds.EqualTo(TIME, datetime(2025, 1, 1)),  # noqa: DTZ001 - a time without a zone is what must not be taken
        ds.EqualTo(("headers", "key"), "x"),
        ds.LessThan(("timestampType",), 1),
    ],
)
def test_filters_that_cannot_be_pushed_are_left_to_spark(given: Any) -> None:
    pushed, rest = push_filters([given])
    assert (pushed.bounds, pushed.logs) == (offsets(), ())
    assert rest == [given]


def test_not_null_always_holds_for_columns_without_nulls() -> None:
    assert push_filters([ds.IsNotNull(OFFSET), ds.IsNotNull(TOPIC), ds.IsNotNull(("timestampType",))])[1] == []
