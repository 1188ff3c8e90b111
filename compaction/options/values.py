"""Values in a call: texts, settings, times, durations (``2h``), sizes (``500GiB``), shares (``10%``).

A time is given in milliseconds since the epoch, or as ISO 8601 with an offset from UTC. Times before 2000 are refused as
seconds given for milliseconds, times after 9999 as microseconds.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta, timezone
from fractions import Fraction

from compaction.config.entries import Kind, plain_text
from compaction.errors import UsageError

#: one value or several
Texts = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
#: settings by name, or as ``NAME=VALUE``
NamedSettings = Mapping[str, object] | Iterable[str]
#: ISO 8601 with an offset from UTC, or milliseconds since the epoch
Time = str | int | datetime

_LOGGER = logging.getLogger(__name__)
_ISO = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d)(?P<s>:\d\d)?(?P<fraction>\.\d{1,9})?"
    r"(?P<offset>Z|z|[+-]\d\d:?\d\d)?"
)
_HOURS = re.compile(r".*:.*[+-]\d\d")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_MS = 946_684_800_000
_LAST_MS = 253_402_300_799_999
#: a smaller number alone is more likely to lack its unit
_LEAST_WITHOUT_UNIT = 1 << 20
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


def texts(values: Texts) -> list[str]:
    return [os.fspath(value) for value in ((values,) if isinstance(values, (str, os.PathLike)) else values)]


def pairs(settings: NamedSettings) -> list[str]:
    """Settings as ``NAME=VALUE``; several values of one are joined by commas."""
    if isinstance(settings, Mapping):
        return [f"{name}={_value(value)}" for name, value in settings.items()]
    return [settings] if isinstance(settings, str) else list(settings)


def texts_of_policies(policies: Texts | Iterable[Mapping[str, object]]) -> list[str]:
    """Policies as ``NAME=VALUE,NAME=VALUE``, from such texts or from settings by name; lists are in brackets."""
    values = [policies] if isinstance(policies, (str, os.PathLike)) else policies
    return [_policy(policy) if isinstance(policy, Mapping) else os.fspath(policy) for policy in values]


def _policy(settings: Mapping[str, object]) -> str:
    parts = [text.partition("=") for text in pairs(settings)]
    return ",".join(f"{name}=[{value}]" if "," in value else f"{name}={value}" for name, _, value in parts)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def milliseconds(text: str) -> int:
    """A time in milliseconds since the epoch, from their decimal digits.

    :raises ValueError: not a time, or before 2000 or after 9999
    """
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError(f"{text!r} is not a time in milliseconds since the epoch")
    return _in_range(int(text), text)


def iso_time_ms(text: str) -> int:
    """A time in milliseconds since the epoch, from ISO 8601 with an offset from UTC: ``2026-11-22T02:00Z``.

    A date is its midnight in UTC, and ``+05`` is ``+05:00``; a warning then has the time that was read.

    :raises ValueError: not such a time, or before 2000
    """
    full = f"{text}T00:00Z" if _DATE.fullmatch(text) else f"{text}:00" if _HOURS.fullmatch(text) else text
    match = _ISO.fullmatch(full)
    if match is None:
        raise ValueError(f"{text!r} is not a time such as 2026-11-22T02:00Z or 2026-11-22T03:00:00+01:00")
    if match["offset"] is None:
        raise ValueError(f"{text!r} has no offset from UTC: append Z, or an offset such as +01:00")
    offset = "+0000" if match["offset"] in "Zz" else match["offset"]
    try:
        whole = datetime.strptime(f"{match['date']}T{match['time']}{match['s'] or ':00'}{offset}", "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        raise ValueError(f"{text!r} is not a valid time") from None
    time_ms = (whole - _EPOCH) // timedelta(milliseconds=1) + int(Fraction(f"0{match['fraction'] or ''}") * 1000)
    if full != text:
        _LOGGER.warning("the time %s is read as %s", text, full)
    return _in_range(time_ms, text)


def _in_range(time_ms: int, text: str) -> int:
    if time_ms < _FIRST_MS:
        raise ValueError(f"{text!r} is a time before the year 2000; milliseconds since the epoch have 13 digits")
    if time_ms > _LAST_MS:
        raise ValueError(f"{text!r} is a time after the year 9999; milliseconds since the epoch have 13 digits")
    return time_ms


def as_of_ms(time: Time | None, option: str = "--as-of") -> int | None:
    """A time of a call in milliseconds since the epoch.

    :raises UsageError: not a time with an offset from UTC
    """
    if time is None:
        return None
    try:
        if isinstance(time, int):
            return milliseconds(str(time))
        return iso_time_ms(time.isoformat() if isinstance(time, date) else str(time))
    except ValueError as error:
        raise UsageError(f"{option}: {error}", hint="give a time with its offset from UTC") from None


def read_duration(option: str, value: str | int | None) -> int | None:
    """Milliseconds; ``None`` for no value.

    :raises UsageError: the value is not a duration
    """
    return _number(option, value, "duration.ms", "a time such as 90m or 2h")


def read_size(option: str, value: str | int | None) -> int | None:
    """Bytes; ``None`` for no value.

    :raises UsageError: the value is not a size, or a text without a unit below 1 MiB
    """
    number = _number(option, value, "rewrite.bytes", "a size such as 500GiB")
    if isinstance(value, str) and value.strip().isdigit() and number is not None and number < _LEAST_WITHOUT_UNIT:
        hint = f"give a unit: {number}GiB, {number}MiB or {number}B"
        raise UsageError(f"{option}: {value!r} would be {number} bytes", hint=hint)
    return number


def _number(option: str, value: str | int | None, name: str, example: str) -> int | None:
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


def read_share(option: str, value: str | None) -> float | None:
    """A share in per cent as a fraction; ``None`` for no value.

    :raises UsageError: the value is not a share
    """
    if value is None:
        return None
    match = _SHARE.fullmatch(str(value).strip())
    if match is None or float(match[1]) > 100:
        raise UsageError(f"{option}: {value!r} is not a share in per cent", hint="give a share such as 10%")
    return float(match[1]) / 100
