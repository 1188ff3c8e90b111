"""The broker-level entries of logs and of the cleaner (Kafka 4.3.0: ``LogConfig.SERVER_CONFIG_DEF``, ``CleanerConfig``).

All other entries of a broker have no effect on a log at rest. Their names and types are in ``broker_names.txt``: a broker's
``server.properties`` is accepted unchanged, and a misspelled name or a value of the wrong type is still an error.

Tested by ``tests/config/test_sources.py`` and ``tests/config/test_entries_against_kafka.py``.
"""

from __future__ import annotations

import sys
from functools import cache

from compaction.config.entries import DAY_MS, MIB, TOPIC_ENTRIES, Entry
from compaction.config.kinds import Above, Kind, NonBlankItems, NonZero, Range, Validator, Value

_I, _L, _D, _LIST = Kind.INT, Kind.LONG, Kind.DOUBLE, Kind.LIST
_SOME = Range(1)

_OWN = (
    Entry("log.dir", _LIST, ("/tmp/kafka-logs",), NonBlankItems(), "the log directory, if log.dirs is not set"),  # noqa: S108 - Kafka's default
    Entry("log.dirs", _LIST, None, NonBlankItems(), "the log directories"),
    Entry("log.cleaner.dedupe.buffer.size", _L, 128 * MIB, None, "memory of one offset map, bytes"),
    Entry("log.cleaner.io.buffer.load.factor", _D, 0.9, Above(0, 1), "how full an offset map may become, up to 1"),
    Entry("log.cleaner.io.buffer.size", _I, 512 * 1024, Range(0), "memory of the I/O buffers, bytes"),
    Entry("log.cleaner.io.max.bytes.per.second", _D, sys.float_info.max, Above(0, sys.float_info.max), "I/O limit, bytes/s"),
    Entry("log.cleaner.threads", _I, 1, Range(0), "cleaner threads of a broker"),
    Entry("log.cleaner.backoff.ms", _L, 15_000, Range(0), "pause of an idle cleaner, ms"),
    Entry("log.cleaner.enable", Kind.BOOLEAN, True, None, "whether a broker runs its cleaner"),
    Entry("producer.id.expiration.ms", _I, DAY_MS, _SOME, "time after which an idle producer is forgotten, ms"),
    Entry("transactional.id.expiration.ms", _I, 7 * DAY_MS, _SOME, "time after which an idle transactional id expires, ms"),
    Entry("transaction.max.timeout.ms", _I, 900_000, _SOME, "longest transaction that a broker allows, ms"),
    Entry("offsets.topic.segment.bytes", _I, 100 * MIB, _SOME, "segment.bytes of __consumer_offsets"),
    Entry("transaction.state.log.segment.bytes", _I, 100 * MIB, _SOME, "segment.bytes of __transaction_state"),
    Entry("transaction.state.log.min.isr", _I, 2, _SOME, "min.insync.replicas of __transaction_state"),
    Entry("share.coordinator.state.topic.segment.bytes", _I, 100 * MIB, _SOME, "segment.bytes of __share_group_state"),
    Entry("share.coordinator.state.topic.min.isr", Kind.SHORT, 2, _SOME, "min.insync.replicas of __share_group_state"),
)

#: broker entries that differ in type, default or bounds from the topic entry whose default they set
_DIFFERENT: dict[str, tuple[Kind, Value, Validator | None]] = {
    "log.retention.ms": (_L, None, NonZero()),
    "log.retention.minutes": (_I, None, NonZero()),
    "log.retention.hours": (_I, 168, NonZero()),
    "log.roll.ms": (_L, None, Range(1)),
    "log.roll.hours": (_I, 168, Range(1)),
    "log.roll.jitter.ms": (_L, None, Range(0)),
    "log.roll.jitter.hours": (_I, 0, Range(0)),
    "log.flush.interval.ms": (_L, None, None),
    "log.flush.scheduler.interval.ms": (_L, 2**63 - 1, None),
}


def _defaults_of_topics() -> list[Entry]:
    entries = []
    for topic in TOPIC_ENTRIES.values():
        for synonym in topic.synonyms:
            kind, default, validator = _DIFFERENT.get(synonym.name, (topic.kind, topic.default, topic.validator))
            unit = {60_000: ", in minutes", 3_600_000: ", in hours"}.get(synonym.factor, "")
            entries.append(Entry(synonym.name, kind, default, validator, f"default of {topic.name}{unit}: {topic.doc}"))
    return entries


BROKER_ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (*_OWN, *_defaults_of_topics())}


def is_broker_name(name: str) -> bool:
    """Whether a Kafka 4.3.0 broker has an entry of this name."""
    return name in BROKER_ENTRIES or name in _other_names()


def broker_entry(name: str) -> Entry:
    """The broker entry of this name. Of an entry without effect on a log at rest only the type is checked.

    :raises KeyError: no broker name (``is_broker_name``)
    """
    entry = BROKER_ENTRIES.get(name)
    return entry if entry is not None else Entry(name, _other_names()[name], None, None, "a setting of a running broker")


@cache
def _other_names() -> dict[str, Kind]:
    """The types of the entries without effect on a log at rest, by name."""
    # most runs need neither the list nor this import, which takes 8 ms
    from importlib.resources import files

    lines = (files("compaction.config") / "broker_names.txt").read_text("utf-8").splitlines()
    return {name: Kind[kind] for name, kind in (line.split() for line in lines if not line.startswith("#"))}
