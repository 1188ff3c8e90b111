"""The broker-level entries that matter to a log at rest (Kafka 4.3.0: ``LogConfig.SERVER_CONFIG_DEF``, ``CleanerConfig``).

``broker_entry`` also knows the names and types of all other entries of a broker (``compaction.config.broker_names``), so that a
broker's own ``server.properties`` can be given as it is and a slip in it is still found.
"""

from __future__ import annotations

import sys

from compaction.config.broker_names import OTHER_BROKER_NAMES
from compaction.config.entries import DAY_MS, MIB, TOPIC_ENTRIES, Entry
from compaction.config.kinds import Above, Kind, NonBlankItems, NonZero, Range, Validator, Value

_I, _L, _D, _LIST = Kind.INT, Kind.LONG, Kind.DOUBLE, Kind.LIST
_SOME = Range(1)

_OWN = (
    Entry("log.dir", _LIST, ("/tmp/kafka-logs",), NonBlankItems(), "the log directory, where log.dirs is not set"),  # noqa: S108 - Kafka's default
    Entry("log.dirs", _LIST, None, NonBlankItems(), "the log directories"),
    Entry("log.cleaner.dedupe.buffer.size", _L, 128 * MIB, None, "memory of one offset map, bytes"),
    Entry("log.cleaner.io.buffer.load.factor", _D, 0.9, Above(0, 1), "how full an offset map may become, up to 1"),
    Entry("log.cleaner.io.buffer.size", _I, 512 * 1024, Range(0), "memory of the I/O buffers, bytes"),
    Entry("log.cleaner.io.max.bytes.per.second", _D, sys.float_info.max, Above(0, sys.float_info.max), "I/O limit, bytes/s"),
    Entry("log.cleaner.threads", _I, 1, Range(0), "cleaner threads of a broker"),
    Entry("log.cleaner.backoff.ms", _L, 15_000, Range(0), "pause of an idle cleaner, ms"),
    Entry("log.cleaner.enable", Kind.BOOLEAN, True, None, "whether a broker runs its cleaner"),
    Entry("producer.id.expiration.ms", _I, DAY_MS, _SOME, "time after which an idle producer is forgotten, ms"),
    Entry("transactional.id.expiration.ms", _I, 7 * DAY_MS, _SOME, "time after which an idle transactional id goes, ms"),
    Entry("transaction.max.timeout.ms", _I, 900_000, _SOME, "longest transaction that a broker lets run, ms"),
    Entry("offsets.topic.segment.bytes", _I, 100 * MIB, _SOME, "segment.bytes of __consumer_offsets"),
    Entry("transaction.state.log.segment.bytes", _I, 100 * MIB, _SOME, "segment.bytes of __transaction_state"),
    Entry("transaction.state.log.min.isr", _I, 2, _SOME, "min.insync.replicas of __transaction_state"),
    Entry("share.coordinator.state.topic.segment.bytes", _I, 100 * MIB, _SOME, "segment.bytes of __share_group_state"),
    Entry("share.coordinator.state.topic.min.isr", Kind.SHORT, 2, _SOME, "min.insync.replicas of __share_group_state"),
)

#: broker entries whose type, default or bounds differ from those of the topic entry that they give the default of
_OTHERWISE: dict[str, tuple[Kind, Value, Validator | None]] = {
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
            kind, default, validator = _OTHERWISE.get(synonym.name, (topic.kind, topic.default, topic.validator))
            unit = {60_000: ", in minutes", 3_600_000: ", in hours"}.get(synonym.factor, "")
            entries.append(Entry(synonym.name, kind, default, validator, f"default of {topic.name}{unit}: {topic.doc}"))
    return entries


BROKER_ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (*_OWN, *_defaults_of_topics())}


def is_broker_name(name: str) -> bool:
    """Whether a Kafka 4.3.0 broker knows the name."""
    return name in BROKER_ENTRIES or name in OTHER_BROKER_NAMES


def broker_entry(name: str) -> Entry:
    """The entry of a name that ``is_broker_name`` knows; for one without effect on a log at rest only its type is checked."""
    entry = BROKER_ENTRIES.get(name)
    return entry if entry is not None else Entry(name, OTHER_BROKER_NAMES[name], None, None, "a setting of a running broker")
