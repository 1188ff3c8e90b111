"""Reduces a failing story: removes everything that the failure does not need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.conformance.stories import NewSegment, Story, Turn
from tests.oracle.records import NaiveBatch, NaiveRecord, decode, encode

#: whether a story still fails
Fails = Callable[[Story], bool]
_LIMIT = 400


def shrink(story: Story, fails: Fails) -> Story:
    """The smallest story found that still fails, within a bounded number of attempts."""
    tried = 0
    progress = True
    while progress:
        progress = False
        for smaller in filter(_stands, _smaller(story)):
            tried += 1
            if tried > _LIMIT:
                return story
            if fails(smaller):
                story, progress = smaller, True
                break
    return story


def _stands(story: Story) -> bool:
    """Whether the log start never decreases, and is always within the log: else Kafka deletes the log."""
    end_offset = log_start = 0
    for turn in story.turns:
        ends = [decode_one(segment.batches[-1]).next_offset for segment in turn.segments if segment.batches]
        end_offset = max([end_offset, *ends])
        if not log_start <= turn.log_start_offset <= end_offset:
            return False
        log_start = turn.log_start_offset
    return True


def _smaller(story: Story) -> Iterator[Story]:
    """Stories with something removed, the largest cuts first."""
    turns = story.turns
    for at in reversed(range(len(turns))):
        if len(turns) > 1:
            yield replace(story, turns=turns[:at] + turns[at + 1 :])
    for at, turn in enumerate(turns):
        for smaller in _smaller_turns(turn, first=at == 0):
            yield replace(story, turns=(*turns[:at], smaller, *turns[at + 1 :]))
    for name in story.config:
        if name != "index.interval.bytes":
            yield replace(story, config={key: value for key, value in story.config.items() if key != name})


def _smaller_turns(turn: Turn, *, first: bool) -> Iterator[Turn]:
    defaults = Turn(turn.at)
    for name in ("log_start_offset", "high_watermark", "killed", "lost", "replays", "checkpoint"):
        if getattr(turn, name) != getattr(defaults, name):
            yield replace(turn, **{name: getattr(defaults, name)})
    segments = turn.segments
    for at in range(len(segments)):
        if len(segments) > 1 or not first:
            yield replace(turn, segments=segments[:at] + segments[at + 1 :])
    for at, segment in enumerate(segments):
        for batches in _fewer(segment.batches):
            yield replace(turn, segments=(*segments[:at], NewSegment(segment.mtime_ms, batches), *segments[at + 1 :]))


def _fewer(batches: tuple[bytes, ...]) -> Iterator[tuple[bytes, ...]]:
    size = len(batches) // 2
    while size:
        for at in range(0, len(batches), size):
            yield batches[:at] + batches[at + size :]
        size //= 2
    for at, raw in enumerate(batches):
        for lighter in _lighter(raw):
            yield (*batches[:at], lighter, *batches[at + 1 :])


def _lighter(raw: bytes) -> Iterator[bytes]:
    """The batch without one of its records, or without its codec."""
    batch = decode_one(raw)
    if batch.magic < 2 or batch.control or batch.count < 1:
        return
    records = batch.records()
    horizon = -1 if batch.delete_horizon_ms is None else batch.delete_horizon_ms
    for at in range(len(records)) if len(records) > 1 else ():
        yield encode(batch, records[:at] + records[at + 1 :], horizon)
    plain = encode(_plain(batch), [_short(record) for record in records], horizon)
    if len(plain) < len(raw) or batch.codec:
        yield plain


def decode_one(raw: bytes) -> NaiveBatch:
    """A batch by itself."""
    (batch,) = decode(raw)
    return batch


def _plain(batch: NaiveBatch) -> NaiveBatch:
    return replace(batch, attributes=batch.attributes & ~7)


def _short(record: NaiveRecord) -> NaiveRecord:
    return replace(record, value=None if record.value is None else b"v", headers=())
