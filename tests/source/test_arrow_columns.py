"""Arrow columns of decoded records: what Spark cannot represent."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from compaction.names import TopicPartition
from compaction.source.arrow import ArrowColumns, read_schema

LIMIT_MS = (2**63 - 1) // 1000


def task() -> ArrowColumns:
    return ArrowColumns(read_schema({"columns": "timestamp"}), TopicPartition("orders", 3))


def micros(task: ArrowColumns, *stamps: int) -> list[int]:
    columns = SimpleNamespace(timestamp_ms=np.array(stamps, np.int64), offset=np.arange(70, 70 + len(stamps)))
    made = task.batch(SimpleNamespace(columns=columns), 0)["timestamp"]  # type: ignore[arg-type]
    return list(made.cast(pa.int64()).to_pylist())


def test_timestamps_in_nanoseconds_are_not_clamped_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    nanoseconds = 1_760_000_000_000_000_000
    first, second = task(), task()
    assert micros(first, 1_760_000_000_000, nanoseconds, -(2**63), nanoseconds + 1) == [
        1_760_000_000_000_000, LIMIT_MS * 1000, -LIMIT_MS * 1000, LIMIT_MS * 1000,
    ]  # fmt: skip
    micros(first, nanoseconds)
    (warning,) = caplog.messages
    assert f"first: {nanoseconds} at offset 71 of orders-3" in warning
    assert "dump-log prints them as they are" in warning
    # a later query in the same process has a warning of its own
    micros(second, nanoseconds)
    assert len(caplog.messages) == 2


def test_all_other_timestamps_are_shown_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    assert micros(task(), -1, 0, LIMIT_MS, -LIMIT_MS) == [-1000, 0, LIMIT_MS * 1000, -LIMIT_MS * 1000]
    assert not caplog.messages
