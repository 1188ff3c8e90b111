"""Filter pushdown of the ``kafka_log`` data source: topic and partition select logs, offset and timestamp select segments,
batches and records.

Filters are identified by class name, as PySpark 4.0 lacks the classes. A filter is either applied exactly, or narrows the read
and is applied by Spark as well.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from compaction.names import TopicPartition
from compaction.source.read_columns import MAX_LONG, MIN_LONG, Bounds

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda value, values: value in values,
    "StringStartsWith": str.startswith,
    "StringEndsWith": str.endswith,
    "StringContains": operator.contains,
}


@dataclass(frozen=True)
class LogFilter:
    """A condition on ``topic`` or ``partition``; ``kind`` is the name of a filter class."""

    column: str
    kind: str
    value: Any
    negated: bool

    def takes(self, name: TopicPartition) -> bool:
        value = name.topic if self.column == "topic" else name.partition
        return _COMPARE[self.kind](value, self.value) is not self.negated


@dataclass(frozen=True)
class PushedFilters:
    """The filters that the source applies; records must pass all of them."""

    logs: tuple[LogFilter, ...] = ()
    bounds: Bounds = Bounds(first_offset=MIN_LONG)

    def takes(self, name: TopicPartition) -> bool:
        return all(log.takes(name) for log in self.logs)


def push_filters(filters: Iterable[Any], *, logs_only: bool = False) -> tuple[PushedFilters, list[Any]]:
    """The pushed filters, and those that Spark still has to apply.

    :param logs_only: only topic and partition: of a view, other filters select rows of the result
    """
    pushed, rest = PushedFilters(), []
    for filter_ in filters:
        part, exact = _push(filter_)
        if logs_only and not (part is not None and part.logs):
            rest.append(filter_)
            continue
        if part is not None:
            pushed = PushedFilters(pushed.logs + part.logs, pushed.bounds.within(part.bounds))
        if not exact:
            rest.append(filter_)
    return pushed, rest


def _push(filter_: Any) -> tuple[PushedFilters | None, bool]:
    negated = type(filter_).__name__ == "Not"
    inner = filter_.child if negated else filter_
    kind, path = type(inner).__name__, inner.attribute
    if len(path) != 1:
        return None, False
    column = path[0]
    if kind == "IsNotNull" and not negated and column in _NEVER_NULL:
        return None, True
    value = getattr(inner, "value", None)
    if value is None or kind not in _COMPARE or (kind == "In" and any(item is None for item in value)):
        return None, False
    if column in ("topic", "partition"):
        return PushedFilters(logs=(LogFilter(column, kind, value, negated),)), True
    if negated or column not in ("offset", "timestamp"):
        return None, False
    return _narrow(column, kind, value)


def _narrow(column: str, kind: str, value: Any) -> tuple[PushedFilters | None, bool]:
    values = value if kind == "In" else (value,)
    numbers = [_micros(item) if column == "timestamp" else item for item in values]
    units = [item for item in numbers if isinstance(item, int)]
    if not units or len(units) < len(numbers):
        return None, False
    step = 1000 if column == "timestamp" else 1
    first, last = MIN_LONG, MAX_LONG
    if kind in ("EqualTo", "EqualNullSafe", "In", "GreaterThanOrEqual"):
        first = -(-min(units) // step)
    elif kind == "GreaterThan":
        first = units[0] // step + 1
    if kind in ("EqualTo", "EqualNullSafe", "In", "LessThanOrEqual"):
        last = max(units) // step
    elif kind == "LessThan":
        last = -(-units[0] // step) - 1
    if column == "timestamp":
        return PushedFilters(bounds=Bounds(MIN_LONG, MAX_LONG, first, last)), kind != "In"
    return PushedFilters(bounds=Bounds(first, last)), kind != "In"


def _micros(value: Any) -> int | None:
    """Microseconds since the epoch; ``None`` without a time zone."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(microseconds=1)
