"""The limits of a run as a call gives them."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.commands.compact import OPTIONS, budget_of
from compaction.config.request import Budget
from compaction.errors import UsageError
from compaction.options.table import CompactOptions


def options(max_duration: object, max_rewrite: object, min_freed: object) -> CompactOptions:
    return OPTIONS.complete({"max_duration": max_duration, "max_rewrite": max_rewrite, "min_freed": min_freed})


@pytest.mark.parametrize(
    ("given", "budget"),
    [
        ((None, None, None), Budget()),
        (("2h", None, None), Budget(max_duration_ms=7_200_000)),
        (("1h30m", "500GiB", "10%"), Budget(5_400_000, 500 << 30, 0.1)),
        ((None, "500B", None), Budget(max_rewrite_bytes=500)),
        ((None, "1048576", None), Budget(max_rewrite_bytes=1 << 20)),
        ((1000, 4096, " 0.5 %"), Budget(1000, 4096, 0.005)),
    ],
)
def test_times_sizes_and_shares_are_read(given: tuple[Any, ...], budget: Budget) -> None:
    assert budget_of(options(*given)) == budget


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("soon", None, None), "--max-duration: 'soon' is not a time"),
        ((0, None, None), "--max-duration: '0' is not a time"),
        ((None, "5G", None), "--max-rewrite: '5G' is ambiguous"),
        ((None, "500", None), "--max-rewrite: '500' would be 500 bytes; give a unit: 500GiB, 500MiB or 500B"),
        ((None, "-1", None), "--max-rewrite: '-1' is not a size"),
        ((None, None, "10"), "--min-freed: '10' is not a share in per cent"),
        ((None, None, "101%"), "--min-freed: '101%' is not a share in per cent"),
    ],
)
def test_other_values_are_usage_errors(given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        budget_of(options(*given))
    assert raised.value.describe().startswith(message)
