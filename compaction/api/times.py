"""Times that options give: milliseconds since the epoch, or ISO 8601 with an offset from UTC.

Times before 2000 are refused, because they are seconds given for milliseconds, and so are times after 9999: microseconds.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from fractions import Fraction

_ISO = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d)(?P<s>:\d\d)?(?P<fraction>\.\d{1,9})?(?P<offset>Z|z|[+-]\d\d:?\d\d)?"
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_MS = 946_684_800_000
_LAST_MS = 253_402_300_799_999


def milliseconds(text: str) -> int:
    """A time in milliseconds since the epoch, from their decimal digits.

    :raises ValueError: not a time, or before 2000 or after 9999
    """
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError(f"{text!r} is not a time in milliseconds since the epoch")
    return _in_range(int(text), text)


def iso_time_ms(text: str) -> int:
    """A time in milliseconds since the epoch, from ISO 8601 with an offset from UTC: ``2026-11-22T02:00Z``.

    :raises ValueError: not such a time, or before 2000
    """
    match = _ISO.fullmatch(text)
    if match is None and _DATE.fullmatch(text):
        raise ValueError(f"{text!r} is a date without a time: {text}T00:00Z is its midnight in UTC")
    if match is None:
        raise ValueError(f"{text!r} is not a time such as 2026-11-22T02:00Z or 2026-11-22T03:00:00+01:00")
    if match["offset"] is None:
        raise ValueError(f"{text!r} has no offset from UTC: append Z, or an offset such as +01:00")
    offset = "+0000" if match["offset"] in "Zz" else match["offset"]
    try:
        whole = datetime.strptime(f"{match['date']}T{match['time']}{match['s'] or ':00'}{offset}", "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        raise ValueError(f"{text!r} is not a time that exists") from None
    return _in_range((whole - _EPOCH) // timedelta(milliseconds=1) + int(Fraction(f"0{match['fraction'] or ''}") * 1000), text)


def _in_range(time_ms: int, text: str) -> int:
    if time_ms < _FIRST_MS:
        raise ValueError(f"{text!r} is a time before the year 2000; milliseconds since the epoch have 13 digits")
    if time_ms > _LAST_MS:
        raise ValueError(f"{text!r} is a time after the year 9999; milliseconds since the epoch have 13 digits")
    return time_ms
