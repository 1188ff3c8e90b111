"""Amounts in a call, as in its budget: durations (``2h``), sizes (``500GiB``), shares (``10%``); or milliseconds and bytes."""

from __future__ import annotations

import re
from typing import Any

from compaction.config.kinds import Kind, plain_text
from compaction.config.request import Budget
from compaction.errors import UsageError

#: a smaller number alone is more likely to lack its unit
_LEAST_WITHOUT_UNIT = 1 << 20
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


def read_budget(max_duration: Any, max_rewrite: Any, min_freed: Any) -> Budget:
    """:raises UsageError: a value is none of these"""
    return Budget(
        read_duration("--max-duration", max_duration),
        read_size("--max-rewrite", max_rewrite),
        None if min_freed is None else _share(str(min_freed)),
    )


def read_duration(option: str, value: Any) -> int | None:
    """Milliseconds; ``None`` for no value.

    :raises UsageError: the value is not a duration
    """
    return _number(option, value, "duration.ms", "a time such as 90m or 2h")


def read_size(option: str, value: Any) -> int | None:
    """Bytes; ``None`` for no value.

    :raises UsageError: the value is not a size, or a text without a unit below 1 MiB
    """
    number = _number(option, value, "rewrite.bytes", "a size such as 500GiB")
    if isinstance(value, str) and value.strip().isdigit() and number is not None and number < _LEAST_WITHOUT_UNIT:
        hint = f"give a unit: {number}GiB, {number}MiB or {number}B"
        raise UsageError(f"{option}: {value!r} would be {number} bytes", hint=hint)
    return number


def _number(option: str, value: Any, name: str, example: str) -> int | None:
    """:param name: says the unit, as the name of a setting does"""
    if value is None:
        return None
    text = str(value)
    try:
        number = plain_text(text, name, Kind.LONG)
    except ValueError as error:
        raise UsageError(f"{option}: {text!r} {error}", hint=f"give {example}") from None
    if not re.fullmatch("[0-9]{1,18}", number) or int(number) == 0:
        raise UsageError(f"{option}: {text!r} is not {example.partition(' such')[0]}", hint=f"give {example}")
    return int(number)


def _share(text: str) -> float:
    match = _SHARE.fullmatch(text.strip())
    if match is None or float(match[1]) > 100:
        raise UsageError(f"--min-freed: {text!r} is not a share in per cent", hint="give a share such as 10%")
    return float(match[1]) / 100
