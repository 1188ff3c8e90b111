"""The figures of policies through time: each log under each policy, and the sums over all logs.

Sizes are bytes of ``.log`` files, as ``retention.bytes`` counts them; peaks are what is on the disk. All logs have samples at
the same times, so that sums are those of the logs at each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Event:
    """What happened at a time: ``cleaned``, with the bytes read and written, or ``deleted``, with the bytes of the segments."""

    #: when, ms since the epoch
    at_ms: int
    #: ``cleaned`` or ``deleted``
    what: str
    #: bytes that the cleaner read, or that were deleted
    bytes_before: int
    #: bytes that the cleaner wrote; 0 if segments were deleted
    bytes_after: int


@dataclass(frozen=True)
class Sample:
    """The log at the end of a period, and its least, mean and greatest size since the end of the one before."""

    #: end of the period, ms since the epoch
    at_ms: int
    #: bytes of ``.log`` files at that time
    bytes: int
    #: the least in the period
    least_bytes: int
    #: the mean over time
    mean_bytes: int
    #: the greatest, with indexes, and the segments that wait for ``file.delete.delay.ms``
    peak_bytes: int
    #: the largest output of a cleaning in the period, with its indexes, which stands beside what it replaces for a while
    cleaned_bytes: int
    #: bytes of superseded records, at that time
    superseded_bytes: int
    #: segments at that time
    segments: int
    #: bytes of the log that have arrived so far
    arrived_bytes: int


@dataclass(frozen=True)
class Known:
    """What a log tells about its past."""

    #: whether the figures of bytes are exact: the log is small, and uncompressed batches hold one record each
    exact: bool
    #: how they are estimated, in a sentence; empty if they are exact
    estimate: str
    #: whether its times are those of its files, because its timestamps say nothing
    file_times: bool
    #: the time of its first record, ms since the epoch
    first_ms: int
    #: from here on nothing is missing in it, ms since the epoch
    complete_from_ms: int
    #: of the offsets before, the share without a record
    missing_share: float
    #: bytes of all that has arrived
    arrived_bytes: int


@dataclass(frozen=True)
class Effect:
    """One log, or all, under one policy through time."""

    #: the policy
    policy: str
    #: the log at the end of each period
    samples: tuple[Sample, ...] = ()
    #: cleanings and deletions
    events: tuple[Event, ...] = ()
    #: how long a superseded record remained at most, ms
    oldest_superseded_ms: int = 0
    #: how long a record remained at most that a tombstone superseded, ms
    oldest_deleted_ms: int = 0
    #: why there are no figures; ``null`` if there are
    error: str | None = None

    @property
    def least_bytes(self) -> int:
        """The least size since the first period ended."""
        return min((sample.least_bytes for sample in self.samples[1:]), default=self.end_bytes)

    @property
    def mean_bytes(self) -> int:
        """The mean over time."""
        pairs = list(pairwise(self.samples))
        area = sum(sample.mean_bytes * (sample.at_ms - before.at_ms) for before, sample in pairs)
        return area // (self.samples[-1].at_ms - self.samples[0].at_ms) if pairs else self.end_bytes

    @property
    def peak_bytes(self) -> int:
        """The greatest size, with the output of one cleaning beside the segments that it replaces."""
        return max((sample.peak_bytes + sample.cleaned_bytes for sample in self.samples[1:]), default=self.end_bytes)

    @property
    def end_bytes(self) -> int:
        return self.samples[-1].bytes if self.samples else 0

    @property
    def segments(self) -> int:
        """At the end."""
        return self.samples[-1].segments if self.samples else 0

    @property
    def cleanings(self) -> int:
        return sum(event.what == "cleaned" for event in self.events)

    @property
    def bytes_read(self) -> int:
        """By the cleaner; each of its two passes reads them."""
        return sum(event.bytes_before for event in self.events if event.what == "cleaned")

    @property
    def bytes_written(self) -> int:
        """By the cleaner."""
        return sum(event.bytes_after for event in self.events)

    @property
    def bytes_deleted(self) -> int:
        """By the delete policy."""
        return sum(event.bytes_before for event in self.events if event.what == "deleted")

    @property
    def write_amplification(self) -> float:
        """Bytes written, by producers and the cleaner, for each byte that arrived."""
        arrived = self.samples[-1].arrived_bytes if self.samples else 0
        return (arrived + self.bytes_written) / arrived if arrived else 1.0

    @property
    def superseded_share(self) -> float:
        """The mean share of superseded records in the log: a consumer that reads all of it reads them in vain."""
        shares = [sample.superseded_bytes / sample.bytes for sample in self.samples if sample.bytes]
        return sum(shares) / len(shares) if shares else 0.0


@dataclass(frozen=True)
class SimulatedLog:
    """One log under all policies."""

    #: name of the topic
    topic: str
    #: number of the partition
    partition: int
    #: the log directory that has the log
    log_dir: str
    #: what it tells about its past; ``null`` if it has no figures
    known: Known | None = None
    #: it under each policy, in the order of ``policies``; in the document this field is called ``policies``
    effects: tuple[Effect, ...] = ()
    #: why it has no figures; ``null`` if it has
    error: str | None = None

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.topic}-{self.partition}"


def total(policy: str, effects: Sequence[Effect]) -> Effect:
    """The sum over logs under one policy."""
    shown = [effect for effect in effects if effect.error is None]
    return Effect(
        policy,
        tuple(_sum(samples) for samples in zip(*(effect.samples for effect in shown), strict=True)),
        tuple(sorted((event for effect in shown for event in effect.events), key=lambda event: event.at_ms)),
        max((effect.oldest_superseded_ms for effect in shown), default=0),
        max((effect.oldest_deleted_ms for effect in shown), default=0),
    )


def _sum(samples: Sequence[Sample]) -> Sample:
    names = ("bytes", "least_bytes", "mean_bytes", "peak_bytes", "superseded_bytes", "segments", "arrived_bytes")
    sums = {name: sum(getattr(sample, name) for sample in samples) for name in names}
    return Sample(samples[0].at_ms, cleaned_bytes=max(sample.cleaned_bytes for sample in samples), **sums)
