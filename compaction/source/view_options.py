"""The data source's options for views, and for offsets of single partitions in the JSON form of Spark's Kafka source; flags
and numbers in the other options.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from compaction.errors import UsageError
from compaction.names import TopicPartition
from compaction.source.read_columns import MAX_LONG, MIN_LONG, Bounds

LATEST, CHANGES = "latest", "changes"
READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"
_EARLIEST_OFFSET, _LATEST_OFFSET = -2, -1
_NO_VIEW_OPTIONS = ("startingtimestamp", "endingtimestamp", "includecontrol")


@dataclass(frozen=True)
class ViewOptions:
    """The view, if any, whether it has tombstones, and the offsets ``[starting, ending)`` of single partitions."""

    view: str | None = None
    tombstones: bool = True
    starting: Mapping[TopicPartition, int] = field(default_factory=dict)
    ending: Mapping[TopicPartition, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ViewOptions:
        """From the options of a read, with names in lower case.

        :raises UsageError: a value is not valid, or options contradict each other
        """
        view = options.get("view")
        if view not in (None, LATEST, CHANGES):
            raise UsageError(f"view {view!r} is neither {LATEST} nor {CHANGES}")
        tombstones = options.get("tombstones", "keep")
        if tombstones not in ("keep", "drop"):
            raise UsageError(f"tombstones {tombstones!r} is neither keep nor drop")
        if "tombstones" in options and view != LATEST:
            raise UsageError(f"tombstones is an option of view={LATEST}", hint=f"in view={CHANGES} they are the deletes")
        for single, plural in (("startingoffset", "startingoffsets"), ("endingoffset", "endingoffsets")):
            if single in options and plural in options:
                raise UsageError(f"{single} and {plural} are both given", hint="give one of them")
        if view is not None:
            _check_view(options)
        return cls(
            view,
            tombstones == "keep",
            _offsets(options, "startingoffsets", "earliest"),
            _offsets(options, "endingoffsets", "latest"),
        )

    def bounds_of(self, name: TopicPartition) -> Bounds:
        """The offsets of a partition; one that the options do not name is read from its start, and to its end."""
        first, end = self.starting.get(name, _EARLIEST_OFFSET), self.ending.get(name, _LATEST_OFFSET)
        return Bounds(MIN_LONG if first < 0 else first, MAX_LONG if end < 0 else end - 1)

    def require_partitions(self, selected: Collection[TopicPartition]) -> None:
        """:raises UsageError: an offset is of a partition that is not ``selected``"""
        for option, offsets in (("startingoffsets", self.starting), ("endingoffsets", self.ending)):
            missing = sorted(offsets.keys() - selected)
            if missing:
                raise UsageError(f"{option}: {missing[0]} is not among the selected logs", hint="leave it out, or select it")


def _check_view(options: Mapping[str, str]) -> None:
    refused = [name for name in _NO_VIEW_OPTIONS if name in options]
    if refused:
        raise UsageError(f"{refused[0]} cannot be combined with a view", hint="filter the rows of the view")
    if options.get("isolation.level", READ_COMMITTED) != READ_COMMITTED:
        raise UsageError("a view has no aborted data: its isolation.level is read_committed")


def _offsets(options: Mapping[str, str], option: str, word: str) -> dict[TopicPartition, int]:
    """``{"orders": {"0": 23, "1": -2}}``; ``word`` stands for all partitions, as does -2 (start) or -1 (end) for one."""
    text = options.get(option, word)
    if text == word:
        return {}
    special = _EARLIEST_OFFSET if word == "earliest" else _LATEST_OFFSET
    try:
        offsets = {
            TopicPartition(topic, int(partition)): offset
            for topic, partitions in json.loads(text).items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, RecursionError):
        offsets = {TopicPartition("", 0): None}
    if any(type(offset) is not int or (offset < 0 and offset != special) for offset in offsets.values()):
        hint = f'e.g. {{"orders": {{"0": 23, "1": {special}}}}}, or {word}'
        raise UsageError(f"{option} {text!r} has no offsets of partitions", hint=hint)
    return offsets


def flag(options: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """A boolean option; ``name`` is in lower case.

    :raises UsageError: the value is not a boolean
    """
    value = next((value for key, value in options.items() if key.lower() == name), str(default)).lower()
    if value not in ("true", "false"):
        raise UsageError(f"option {name} is {value!r}, expected true or false")
    return value == "true"


def number(options: Mapping[str, str], name: str, default: int, *, minimum: int) -> int:
    """A whole number from ``minimum`` to the largest of 64 bits.

    :raises UsageError: the value is none
    """
    value = options.get(name)
    if value is None:
        return default
    if not re.fullmatch(r"-?[0-9]{1,19}", value):
        raise UsageError(f"option {name} is {value!r}, expected a whole number")
    if not minimum <= int(value) <= MAX_LONG:
        raise UsageError(f"option {name} is {value}, expected a number from {minimum} to {MAX_LONG}")
    return int(value)


def offsets_json(offsets: Mapping[TopicPartition, int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for name, offset in sorted(offsets.items()):
        topics.setdefault(name.topic, {})[str(name.partition)] = offset
    return json.dumps(topics)
