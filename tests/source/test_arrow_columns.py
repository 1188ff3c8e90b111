"""Arrow columns of decoded records: what Spark cannot represent."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from compaction.source import arrow_columns

LIMIT_MS = (2**63 - 1) // 1000


@pytest.fixture(autouse=True)
def as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_columns, "_noted", [])


def micros(*stamps: int) -> list[int]:
    columns = SimpleNamespace(timestamp_ms=np.array(stamps, np.int64), offset=np.arange(70, 70 + len(stamps)))
    made = arrow_columns._timestamps(SimpleNamespace(columns=columns), len(stamps), pa.timestamp("us", "UTC"))  # type: ignore[arg-type]
    return list(made.cast(pa.int64()).to_pylist())


def test_timestamps_in_nanoseconds_are_not_clamped_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    nanoseconds = 1_760_000_000_000_000_000
    assert micros(1_760_000_000_000, nanoseconds, -(2**63), nanoseconds + 1) == [
        1_760_000_000_000_000, LIMIT_MS * 1000, -LIMIT_MS * 1000, LIMIT_MS * 1000,
    ]  # fmt: skip
    micros(nanoseconds)
    (said,) = caplog.messages
    assert f"first: {nanoseconds} at offset 71" in said
    assert "dump-log prints them as they are" in said


def test_all_other_timestamps_are_shown_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    assert micros(-1, 0, LIMIT_MS, -LIMIT_MS) == [-1000, 0, LIMIT_MS * 1000, -LIMIT_MS * 1000]
    assert not caplog.messages
