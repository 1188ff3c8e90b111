"""Scenarios of segment deletion by Kafka's delete policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.kafka.encode import Batch, Legacy, Producer, Record
from tests.scenarios.writer import Writer

#: the time of offset 0, and "now" of every scenario
T = 1_700_000_000_000
HOUR, DAY = 3_600_000, 86_400_000
NOW = T + 10 * DAY

Segments = Sequence[Sequence[bytes]]


@dataclass(frozen=True)
class Expiry:
    """One log: its segments, its settings, and a broker's state of it.

    ``mtimes`` are modification times of segments by base offset, by default a week ago.
    """

    segments: Segments
    config: Mapping[str, str] = field(default_factory=dict)
    log_start_offset: int = 0
    high_watermark: int | None = None
    mtimes: Mapping[int, int] = field(default_factory=dict)

    @property
    def topic_config(self) -> dict[str, str]:
        """All topic-level settings; by default no limits."""
        return {"cleanup.policy": "delete", "retention.ms": "-1", **self.config}


def _daily(days: int = 10, epochs: bool = False) -> list[list[bytes]]:
    """A segment of 10 records per day up to now; the newest records are of today."""
    made = []
    for day in range(days):
        first = day * 10
        records = [Record(first + i, NOW - (days - 1 - day) * DAY - (9 - i), b"k%d" % i, b"v" * 50) for i in range(10)]
        made.append([Batch(records, leader_epoch=day // 3 if epochs else 0).encode()])
    return made


def _untimed(magic_0: bool) -> list[list[bytes]]:
    """Segments whose records have no timestamps, so that the files' modification times decide."""
    made = []
    for number in range(4):
        records = [Record(number * 5 + i, -1, b"k", b"v") for i in range(5)]
        made.append([Legacy(records, 0).encode() if magic_0 else Batch(records).encode()])
    return made


def _producers() -> list[list[bytes]]:
    """Transactions across segments, the last one open; an idempotent producer that writes to the first segment only."""
    writer = Writer(time_ms=NOW - DAY)
    one, two, early = Producer(7), Producer(8), Producer(9)
    return [
        [writer.sent(early, "ab", transactional=False), writer.sent(one, "abc")],
        [writer.sent(one, "d"), writer.commit(one), writer.sent(two, "ab")],
        [writer.abort(two), writer.sent(two, "cd")],
        [writer.sent(one, "ef"), writer.sent(early, "c", transactional=False)],
        [],
    ]


def _with_young_segment() -> list[list[bytes]]:
    """The third of six segments is of today, the later ones are not."""
    return [[Batch([Record(i, NOW if i == 2 else T + i, b"k", b"v")]).encode()] for i in range(6)]


def _size_of(segments: Segments) -> int:
    return sum(len(batch) for segment in segments for batch in segment)


def _retention(segments: Segments, kept: int, less: int = 0) -> dict[str, str]:
    """``retention.bytes`` of exactly the last ``kept`` segments, less so many bytes."""
    return {"retention.bytes": str(_size_of(segments[-kept:]) - less)}


def expiry_scenarios() -> dict[str, Expiry]:
    """By topic name."""
    daily = _daily()
    return {
        **_by_time(daily),
        **_by_size(daily),
        **_by_log_start(daily),
        "mtime-decides-magic-0": Expiry(_untimed(True), {"retention.ms": str(DAY)}, mtimes={10: NOW - HOUR}),
        "mtime-decides-no-times": Expiry(_untimed(False), {"retention.ms": str(DAY)}, mtimes={5: NOW - HOUR}),
        "future-times": Expiry(
            [[Batch([Record(i, NOW + DAY if i == 1 else T, b"k", b"v")]).encode()] for i in range(4)], {"retention.ms": "1"}
        ),
        "size-and-time": Expiry(daily, {**_retention(daily, 6), "retention.ms": str(3 * DAY)}),
        "compact-delete": Expiry(daily, {"cleanup.policy": "compact,delete", "retention.ms": str(3 * DAY)}),
        "policy-of-none": Expiry(daily, {"cleanup.policy": "", "retention.ms": "1"}, log_start_offset=25),
        "high-watermark-inside": Expiry(daily, {"retention.ms": "1"}, high_watermark=45),
        "high-watermark-at-a-base": Expiry(daily, {"retention.ms": "1"}, high_watermark=40),
        "leader-epochs": Expiry(_daily(epochs=True), {"retention.ms": str(3 * DAY + HOUR)}),
        "leader-epochs-all-go": Expiry(_daily(epochs=True), {"retention.bytes": "0"}),
        "producers": Expiry(_producers(), _retention(_producers(), 3)),
        "producers-all-go": Expiry(_producers()[:4], {"retention.bytes": "0"}),
        "empty-last-segment": Expiry([*daily[:5], []], {"retention.ms": "1"}),
        "a-single-segment": Expiry(daily[:1], {"retention.ms": "1", "retention.bytes": "1"}),
        "never-written": Expiry([[]], {"retention.ms": "1", "retention.bytes": "0"}),
    }


def _by_time(daily: Segments) -> dict[str, Expiry]:
    return {
        "time": Expiry(daily, {"retention.ms": str(3 * DAY + HOUR)}),
        "time-at-the-bound": Expiry(daily, {"retention.ms": str(4 * DAY)}),
        "time-over-the-bound-by-1": Expiry(daily, {"retention.ms": str(4 * DAY - 1)}),
        "time-all-but-active": Expiry(daily, {"retention.ms": "1"}),
        "time-all": Expiry(_daily(11)[:10], {"retention.ms": "1"}),
        "time-zero": Expiry(daily, {"retention.ms": "0"}),
        "time-no-limit": Expiry(daily, {"retention.ms": "-1"}),
        "time-stops-at-a-young-segment": Expiry(
            [daily[0], daily[9][:0] or daily[1], *daily[2:]], {"retention.ms": str(8 * DAY)}
        ),
    }


def _by_size(daily: Segments) -> dict[str, Expiry]:
    return {
        "size-exactly": Expiry(daily, _retention(daily, 4)),
        "size-less-1": Expiry(daily, _retention(daily, 4, less=1)),
        "size-more-1": Expiry(daily, _retention(daily, 4, less=-1)),
        "size-of-everything": Expiry(daily, _retention(daily, 10)),
        "size-over-everything": Expiry(daily, _retention(daily, 10, less=-1)),
        "size-0": Expiry(daily, {"retention.bytes": "0"}),
        "size-no-limit": Expiry(daily, {"retention.bytes": "-1"}),
    }


def _by_log_start(daily: Segments) -> dict[str, Expiry]:
    return {
        "log-start-at-a-base": Expiry(daily, log_start_offset=30),
        "log-start-inside": Expiry(daily, log_start_offset=35),
        "log-start-of-compacted": Expiry(daily, {"cleanup.policy": "compact", "retention.ms": "1"}, log_start_offset=35),
        "log-start-and-time": Expiry(daily, {"retention.ms": str(5 * DAY)}, log_start_offset=25),
        "log-start-in-the-last": Expiry(daily, log_start_offset=95),
    }
