"""Policies through time, as ``dry_run(..., over_time=True)`` returns them: each log under each policy, and the sums over all.

Sizes are bytes of ``.log`` files, as ``retention.bytes`` counts them; peaks are what is on the disk. All logs have samples at
the same times, so that sums are those of the logs at each time.

As text it is a line for each policy with its sizes, as figures and as a line of bars. As OpenMetrics text, with the rules and
labels of ``compaction.metrics``:

| metric | meaning |
| --- | --- |
| ``kafka_log_compaction_run_info``, ``…_run_seconds``, ``…_as_of_timestamp_seconds``, ``…_log_failed`` | as of a run |
| ``kafka_log_compaction_policy_log_bytes`` | the size of a log under a ``policy``, by ``state``: ``least``, ``mean``, ``peak``,
  ``end`` |
| ``kafka_log_compaction_policy_cleaner_bytes`` | what the cleaner does, by ``state``: ``read``, ``written`` |
| ``kafka_log_compaction_policy_cleanings`` | how often the log is cleaned |
| ``kafka_log_compaction_policy_oldest_seconds`` | how long records remain at most, by ``state``: once they are ``superseded``,
  or ``deleted`` by a tombstone |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any, ClassVar

from compaction.metrics import Family, Metric, document, labels_of
from compaction.report import RunStatus
from compaction.results import PageResult
from compaction.screen.amounts import counted, elapsed, short_duration, size
from compaction.screen.text_table import Column, Line, Row, Style, letter, table, wrapped

SCHEMA_VERSION = 1
#: topics and logs that the page shows, and the samples of all of them
MOST_VIEWS, _FEW_VIEWS, _MOST_SAMPLES = 200, 10, 25_000
#: the properties of an effect that its object has
_FIGURES = (
    "least_bytes", "mean_bytes", "peak_bytes", "end_bytes", "segments", "cleanings", "bytes_read", "bytes_written",
    "bytes_deleted", "write_amplification", "superseded_share", "oldest_superseded_ms", "oldest_deleted_ms",
)  # fmt: skip
_OF_EFFECT = (
    Family("policy_log_bytes", "Size of a log under a policy through time.", "bytes", "state",
           {state: f"{state}_bytes" for state in ("least", "mean", "peak", "end")}),
    Family("policy_cleaner_bytes", "Bytes that the cleaner reads and writes under a policy.", "bytes", "state",
           {state: f"bytes_{state}" for state in ("read", "written")}),
    Family("policy_oldest_seconds", "Time that records remain at most once they are superseded or deleted.", "seconds", "state",
           {state: f"oldest_{state}_ms" for state in ("superseded", "deleted")}),
    Family("policy_cleanings", "Cleanings of a log under a policy.", "", "", {"": "cleanings"}),
)  # fmt: skip


@dataclass(frozen=True)
class Event:
    """At ``at_ms``, ms since the epoch, the log was ``cleaned``, with the bytes read and written, or segments were ``deleted``,
    with their bytes and 0."""

    at_ms: int
    what: str
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class Sample:
    """The log at the end of a period (``at_ms``, ms since the epoch): ``bytes`` of its ``.log`` files, of superseded records,
    and of all that has arrived so far; its segments. And its least, mean and greatest size since the end of the period before;
    the greatest with indexes, and with the segments that wait for ``file.delete.delay.ms``.

    ``cleaned_bytes``: the largest output of a cleaning in the period, with its indexes, which stands beside what it replaces
    for a while.
    """

    at_ms: int
    bytes: int
    least_bytes: int
    mean_bytes: int
    peak_bytes: int
    cleaned_bytes: int
    superseded_bytes: int
    segments: int
    arrived_bytes: int


@dataclass(frozen=True)
class Known:
    """What a log tells about its past: the time of its first record, that from which on nothing is missing in it, ms since the
    epoch, the share of the offsets before without a record, and the bytes of all that has arrived.

    ``exact``: whether the figures of bytes are, as the log is small, and uncompressed batches hold one record each;
    ``estimate``: else a sentence on how they are estimated. ``file_times``: its times are those of its files, because its
    timestamps say nothing.
    """

    exact: bool
    estimate: str
    file_times: bool
    first_ms: int
    complete_from_ms: int
    missing_share: float
    arrived_bytes: int


@dataclass(frozen=True)
class Effect:
    """One log, or all, under one policy through time; how long a superseded record remained at most, and one that a tombstone
    superseded. ``error``: why there are no figures."""

    policy: str
    samples: tuple[Sample, ...] = ()
    events: tuple[Event, ...] = ()
    oldest_superseded_ms: int = 0
    oldest_deleted_ms: int = 0
    error: str | None = None

    @property
    def least_bytes(self) -> int:
        """The least size since the first period ended."""
        return min((sample.least_bytes for sample in self.samples[1:]), default=self.end_bytes)

    @property
    def mean_bytes(self) -> int:
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
    """One log under all policies: its ``effects`` are in the order of the policies, and called ``policies`` in the document.
    ``error``: why it has no figures, and nothing is known."""

    topic: str
    partition: int
    log_dir: str
    known: Known | None = None
    effects: tuple[Effect, ...] = ()
    error: str | None = None

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.topic}-{self.partition}"


def total(policy: str, effects: Sequence[Effect]) -> Effect:
    """The sum over logs under one policy."""
    shown = [effect for effect in effects if effect.error is None]
    samples = tuple(map(_sum, zip(*(effect.samples for effect in shown), strict=True)))
    events = tuple(sorted((event for effect in shown for event in effect.events), key=lambda event: event.at_ms))
    superseded_ms = max((effect.oldest_superseded_ms for effect in shown), default=0)
    return Effect(policy, samples, events, superseded_ms, max((effect.oldest_deleted_ms for effect in shown), default=0))


def _sum(samples: Sequence[Sample]) -> Sample:
    names = ("bytes", "least_bytes", "mean_bytes", "peak_bytes", "superseded_bytes", "segments", "arrived_bytes")
    sums = {name: sum(getattr(sample, name) for sample in samples) for name in names}
    return Sample(samples[0].at_ms, cleaned_bytes=max(sample.cleaned_bytes for sample in samples), **sums)


@dataclass(frozen=True)
class OverTime(PageResult):
    """All logs under all policies, named in the order given; ``period_ms`` is the time between two samples, ``ahead_ms`` that
    after ``as_of_ms``."""

    page = "over_time"
    not_on_page: ClassVar[frozenset[str]] = frozenset({"least_bytes", "cleaned_bytes", "arrived_bytes"})

    run_id: str
    as_of_ms: int
    policies: tuple[str, ...]
    logs: tuple[SimulatedLog, ...]
    period_ms: int
    ahead_ms: int = 0
    seconds: float = 0.0
    origin: Mapping[str, object] = field(default_factory=dict)

    @property
    def shown(self) -> list[SimulatedLog]:
        """The logs with figures."""
        return [log for log in self.logs if log.error is None]

    @property
    def status(self) -> RunStatus:
        return RunStatus.DONE if len(self.shown) == len(self.logs) else RunStatus.FAILED

    @property
    def exit_code(self) -> int:
        """1 if a log has no figures, else 0."""
        return int(self.status is RunStatus.FAILED)

    def errors(self) -> Iterator[str]:
        """See ``Result``."""
        return (f"{log.name}: {log.error}" for log in self.logs if log.error is not None)

    def totals(self, logs: Sequence[SimulatedLog] | None = None) -> tuple[Effect, ...]:
        """The sums per policy, in the order of ``policies``, by default over all logs with figures."""
        summed = self.shown if logs is None else logs
        return tuple(total(name, [log.effects[number] for log in summed]) for number, name in enumerate(self.policies))

    def lines(self, style: Style | None = None) -> Iterator[Line]:
        """See ``Result``: the sums of each policy; details are its cleanings and deletions."""
        used, shown = style or Style(), self.shown
        named = shown if used.all_rows or len(shown) <= 1 else []
        tables = [(log.name, [log], log.effects) for log in named]
        if len(shown) > 1 or not named:
            tables.append((f"all of {counted(len(shown), 'log')}", shown, self.totals()))
        for name, logs, effects in tables:
            yield from [*wrapped(name, used, colour="bold"), *_dim(_notes(logs), used)]
            yield from [*_table(effects, used), Line("")]
        for log in self.logs:
            for error in dict.fromkeys([log.error if used.details else None, *(effect.error for effect in log.effects)]):
                if error is not None:
                    yield from wrapped(f"{log.name}: {error}", used, hanging=2, colour="red")
        yield from [*_dim(_ahead_note(self), used), *wrapped(self.summary(), used)]

    def summary(self) -> str:
        """The number of logs and failures, and the greatest size under each policy."""
        peaks = [f"{letter(number)} at most {size(total.peak_bytes)}" for number, total in enumerate(self.totals())]
        failed = len(self.logs) - len(self.shown)
        tail = f", {failed} failed" if failed else ""
        time = f"in {elapsed(self.seconds)} without start-up"
        return f"simulated, nothing written: {counted(len(self.logs), 'log')}{tail}; {', '.join(peaks)} on disk, {time}"

    def page_document(self) -> Mapping[str, Any]:
        """See ``PageResult``: all logs, each topic and log, or as many of the largest ones as fit."""
        logs = self.shown
        groups = _groups(logs)
        samples = sum(len(effect.samples) for log in logs[:1] for effect in log.effects)
        most = min(MOST_VIEWS, max(_FEW_VIEWS, _MOST_SAMPLES // max(1, samples)))

        def least_first(number: int) -> int:
            return -max((effect.peak_bytes for log in groups[number][1] for effect in log.effects), default=0)

        largest = sorted(sorted(range(len(groups)), key=least_first)[:most])
        notes = [f"{counted(len(self.logs), 'log')}, which were only read"]
        if len(groups) > len(largest):
            notes.append(f"the {most} largest topics and logs can be chosen; the report has the others")
        views = [(f"all of {counted(len(logs), 'log')}", logs), *(groups[number] for number in largest)]
        return {
            "as_of_ms": self.as_of_ms,
            "about": " ".join(f"{text[0].upper()}{text[1:]}." for text in [*notes, *_ahead_note(self)]),
            "views": [self._view(name, group) for name, group in views],
        }

    def _view(self, name: str, logs: Sequence[SimulatedLog]) -> dict[str, Any]:
        """The effects of the policies on a log, or on several."""
        errors = [f"{log.name}: {log.error}" for log in self.logs if log.error is not None] if len(logs) != 1 else []
        effects = [_effect(effect) for effect in self.totals(logs)]
        for number, effect in enumerate(effects):
            effect["error"] = next((log.effects[number].error for log in logs if log.effects[number].error), None)
        return {"name": name, "notes": [*_notes(logs), *errors], "policies": effects}

    def to_dict(self) -> dict[str, Any]:
        """The document, ``schema_version`` 1; its fields are those of the values above."""
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "as_of_ms": self.as_of_ms,
            "dry_run": True,
            "over_time": True,
            "status": self.status.value,
            "seconds": round(self.seconds, 3),
            **self.origin,
            "period_ms": self.period_ms,
            "ahead_ms": self.ahead_ms,
            "policies": [_effect(effect) for effect in self.totals()],
            "logs": [_log(log) for log in self.logs],
        }


def _groups(logs: Sequence[SimulatedLog]) -> list[tuple[str, list[SimulatedLog]]]:
    """The topics of several logs, and the logs, with their names."""
    topics: dict[str, list[SimulatedLog]] = {}
    for log in logs:
        topics.setdefault(log.topic, []).append(log)
    groups = [(topic, group) for topic, group in topics.items() if 1 < len(group) < len(logs)]
    return groups + ([(log.name, [log]) for log in logs] if len(logs) > 1 else [])


def _log(log: SimulatedLog) -> dict[str, Any]:
    known = None if log.known is None else asdict(log.known)
    head = {name: getattr(log, name) for name in ("topic", "partition", "log_dir", "error")}
    return {**head, "known": known, "policies": [_effect(effect) for effect in log.effects]}


def _effect(effect: Effect) -> dict[str, Any]:
    figures = {name: getattr(effect, name) for name in _FIGURES}
    shares = {name: round(value, 4) for name, value in figures.items() if isinstance(value, float)}
    return {
        "policy": effect.policy,
        "error": effect.error,
        **(figures | shares),
        "samples": [asdict(sample) for sample in effect.samples],
        "events": [asdict(event) for event in effect.events],
    }


_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=+*%#"
_BAR_CELLS = 60


def _table(effects: Sequence[Effect], style: Style) -> list[Line]:
    """A row of figures for each policy, with a line of bars below it."""
    titles = ("mean", "peak", "end", "cleaned", "written", "superseded for", "deleted for")
    peak = max((effect.peak_bytes for effect in effects), default=0)
    lines = []
    for number, effect in enumerate(effects):
        lines += wrapped(f"{letter(number)}  {effect.policy}", style, hanging=3)
    rows = [_row(number, effect, peak, style) for number, effect in enumerate(effects)]
    return [*lines, *table([Column("", right=False), *map(Column, titles)], rows, style)]


def _row(number: int, effect: Effect, peak: int, style: Style) -> Row:
    if not effect.samples:
        return Row([letter(number), *[""] * 7], "", ["no figures"])
    cells = [
        letter(number), size(effect.mean_bytes), size(effect.peak_bytes), size(effect.end_bytes), f"{effect.cleanings:,} x",
        f"{effect.write_amplification:.2f} x", short_duration(effect.oldest_superseded_ms),
        short_duration(effect.oldest_deleted_ms),
    ]  # fmt: skip
    bars = _bars([sample.bytes for sample in effect.samples], peak, style)
    events = [
        f"{_time(event.at_ms)} {event.what} {size(event.bytes_before)}"
        + (f" -> {size(event.bytes_after)}" if event.what == "cleaned" else "")
        for event in effect.events
        if style.details
    ]
    return Row(cells, "", [bars, *events])


def _bars(sizes: Sequence[int], most: int, style: Style) -> str:
    """A bar for each of up to ``_BAR_CELLS`` equal numbers of periods: their largest size."""
    signs = _BARS if style.ellipsis == "…" else _ASCII_BARS
    cells = min(len(sizes), _BAR_CELLS)
    if not cells or not most:
        return ""
    edges = [len(sizes) * cell // cells for cell in range(cells + 1)]
    largest = (max(sizes[first:end]) for first, end in zip(edges, edges[1:], strict=False))
    return "".join(signs[min(len(signs) - 1, value * len(signs) // (most + 1))] for value in largest)


def _notes(logs: Sequence[SimulatedLog]) -> list[str]:
    """What some logs do not tell, and how exact the figures are."""
    all_known = [log.known for log in logs if log.known is not None]
    if not all_known:
        return []
    if len(logs) > 1:
        arrived, first_ms = sum(each.arrived_bytes for each in all_known), min(each.first_ms for each in all_known)
        exact, gone = sum(each.exact for each in all_known), sum(each.missing_share > 0 for each in all_known)
        how = "exact" if exact == len(all_known) else f"{exact} of {len(all_known)} logs exact, the others estimated"
        texts = [f"{size(arrived)} arrived since {_time(first_ms)}; {how}"]
        return [*texts, f"of {counted(gone, 'log')} records of the past are gone"] if gone else texts
    (known,) = all_known
    first = f"{size(known.arrived_bytes)} arrived since {_time(known.first_ms)}"
    texts = [f"{first}; {'exact' if known.exact else 'estimated'}" + (f": {known.estimate}" if known.estimate else "")]
    if known.missing_share:
        share = f"{100 * known.missing_share:.0f} %"
        texts.append(f"complete from {_time(known.complete_from_ms)} on; before that {share} of its records are gone")
    if known.file_times:
        texts.append("its timestamps do not say when its records arrived: the times of its files are used")
    return texts


def _ahead_note(result: OverTime) -> list[str]:
    """What comes after the present."""
    text = f"after {_time(result.as_of_ms)}: the arrivals of the last 30 days once more, whose keys recur as they did"
    return [text] if result.ahead_ms else []


def _dim(texts: Sequence[str], style: Style) -> list[Line]:
    return [line for text in texts for line in wrapped(text, style, colour="dim")]


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%MZ")


def simulation_metrics(result: OverTime) -> str:
    failed = [(labels_of(log), int(log.error is not None)) for log in result.logs]
    pairs = [(log, effect) for log in result.logs for effect in log.effects if effect.error is None]
    effects = [(labels_of(log) | {"policy": effect.policy}, effect) for log, effect in pairs]
    of_logs = Metric("log_failed", "Whether a log failed.", "", failed), *(family.of(effects) for family in _OF_EFFECT)
    return document(result, of_logs, status=result.status.value, dry_run=True)
