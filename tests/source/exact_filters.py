"""The defect of Spark because of which ``kafka_log`` takes no filters, as small as possible: a source that applies them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader


class ExactFilters(DataSource):
    """The numbers from 0 to 3, or those that pass the filters ``n < N`` that Spark pushes down."""

    @classmethod
    def name(cls) -> str:
        return "exact_filters"

    def schema(self) -> str:
        return "n int"

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader()


class _Reader(DataSourceReader):
    def __init__(self) -> None:
        self.end = 4

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - PySpark's name
        for pushed in filters:
            if type(pushed).__name__ == "LessThan":
                self.end = min(self.end, pushed.value)
            elif type(pushed).__name__ != "IsNotNull":
                yield pushed

    def read(self, partition: Any) -> Iterator[tuple[int]]:
        return ((number,) for number in range(self.end))
