"""The topic-level configuration entries of Kafka 4.3.0, with the broker-level names that set their defaults.

Mirrors ``LogConfig.CONFIG`` and ``ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS``. The table is complete: topics also
store entries that have no effect on a log at rest, and these are validated too.

Tested by ``tests/config/test_sources.py`` and ``tests/config/test_entries_against_kafka.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from compaction.config.kinds import INT_MAX, LONG_MAX, Choice, Kind, Range, Validator, Value, parse
from compaction.errors import ConfigError

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MIB = 1 << 20


@dataclass(frozen=True)
class Synonym:
    """A broker-level name that sets the default of a topic-level entry. Its value times ``factor`` is in the entry's unit."""

    name: str
    factor: int = 1


@dataclass(frozen=True)
class Entry:
    """One configuration entry. ``synonyms`` are the broker-level names that set its default, strongest first."""

    name: str
    kind: Kind
    default: Value
    validator: Validator | None
    doc: str
    synonyms: tuple[Synonym, ...] = ()

    def read(self, text: str, *, path: str | None, where: str) -> Value:
        """The validated value of ``text``; ``where`` starts the error message (``line 3: ``, ``--set: ``).

        :raises ConfigError: bad value; names the source, the line and the key
        """
        try:
            value = parse(text, self.kind)
        except ValueError as error:
            complaint: str | None = str(error)
        else:
            complaint = self.validator.complaint(value) if self.validator is not None else None
        if complaint is not None:
            raise ConfigError(f"{where}{self.name} = {text.strip()!r} {complaint}", path=path, hint=f"it is: {self.doc}")
        return value


def _log(*names: str) -> tuple[Synonym, ...]:
    """Broker names under ``log.``, strongest first; the last word of a name is its unit."""
    factors = {"hours": HOUR_MS, "minutes": MINUTE_MS}
    return tuple(Synonym(f"log.{name}", factors.get(name.rsplit(".", 1)[-1], 1)) for name in names)


def _same(name: str) -> tuple[Synonym, ...]:
    return (Synonym(name),)


_B, _I, _L, _S, _LIST = Kind.BOOLEAN, Kind.INT, Kind.LONG, Kind.STRING, Kind.LIST
_COUNT = Range(0)
_SOME = Range(1)

TOPIC_ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "cleanup.policy", _LIST, ("delete",), Choice(("compact", "delete")),
            "what frees space: compact, delete, both or none", _log("cleanup.policy"),
        ),
        Entry("segment.bytes", _I, 1 << 30, Range(MIB), "largest size of one segment, bytes", _log("segment.bytes")),
        Entry(
            "segment.index.bytes", _I, 10 * MIB, Range(4),
            "largest size of an offset or time index, bytes", _log("index.size.max.bytes"),
        ),
        Entry(
            "index.interval.bytes", _I, 4096, _COUNT,
            "bytes appended between two index entries", _log("index.interval.bytes"),
        ),
        Entry(
            "min.cleanable.dirty.ratio", Kind.DOUBLE, 0.5, Range(0, 1),
            "ratio of dirty bytes above which a log is compacted, 0 to 1", _log("cleaner.min.cleanable.ratio"),
        ),
        Entry(
            "delete.retention.ms", _L, DAY_MS, _COUNT,
            "time that tombstones and transaction markers are kept, ms", _log("cleaner.delete.retention.ms"),
        ),
        Entry(
            "min.compaction.lag.ms", _L, 0, _COUNT,
            "time that a record remains uncompacted at least, ms", _log("cleaner.min.compaction.lag.ms"),
        ),
        Entry(
            "max.compaction.lag.ms", _L, LONG_MAX, _SOME,
            "time after which a dirty log is compacted, ms", _log("cleaner.max.compaction.lag.ms"),
        ),
        Entry(
            "file.delete.delay.ms", _L, 60_000, _COUNT,
            "time from a file's removal to its deletion, ms", _log("segment.delete.delay.ms"),
        ),
        Entry(
            "retention.ms", _L, 7 * DAY_MS, Range(-1), "age at which segments are deleted, ms, -1 for never",
            _log("retention.ms", "retention.minutes", "retention.hours"),
        ),
        Entry(
            "retention.bytes", _L, -1, None,
            "log size above which segments are deleted, bytes, -1 for never", _log("retention.bytes"),
        ),
        Entry("max.message.bytes", _I, MIB + 12, _COUNT, "largest record batch, bytes", _same("message.max.bytes")),
        Entry("segment.ms", _L, 7 * DAY_MS, _SOME, "time after which a segment is rolled, ms", _log("roll.ms", "roll.hours")),
        Entry(
            "segment.jitter.ms", _L, 0, _COUNT,
            "largest random time subtracted from segment.ms, ms", _log("roll.jitter.ms", "roll.jitter.hours"),
        ),
        Entry("preallocate", _B, False, None, "whether a new segment's file is preallocated", _log("preallocate")),
        Entry(
            "message.timestamp.type", _S, "CreateTime", Choice(("CreateTime", "LogAppendTime")),
            "CreateTime or LogAppendTime", _log("message.timestamp.type"),
        ),
        Entry(
            "message.timestamp.before.max.ms", _L, LONG_MAX, _COUNT,
            "how far a timestamp may lie in the past, ms", _log("message.timestamp.before.max.ms"),
        ),
        Entry(
            "message.timestamp.after.max.ms", _L, HOUR_MS, _COUNT,
            "how far a timestamp may lie in the future, ms", _log("message.timestamp.after.max.ms"),
        ),
        Entry(
            "compression.type", _S, "producer", Choice(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
            "the codec that a broker stores new batches in", _same("compression.type"),
        ),
        Entry(
            "compression.gzip.level", _I, -1, Range(1, 9, also=(-1,)),
            "gzip level, 1 to 9 or -1", _same("compression.gzip.level"),
        ),
        Entry("compression.lz4.level", _I, 9, Range(1, 17), "lz4 level, 1 to 17", _same("compression.lz4.level")),
        Entry("compression.zstd.level", _I, 3, Range(-131072, 22), "zstd level, up to 22", _same("compression.zstd.level")),
        Entry(
            "flush.messages", _L, LONG_MAX, _SOME, "messages after which a log is flushed", _log("flush.interval.messages"),
        ),
        Entry(
            "flush.ms", _L, LONG_MAX, _COUNT, "time after which a log is flushed, ms",
            _log("flush.interval.ms", "flush.scheduler.interval.ms"),
        ),
        Entry("min.insync.replicas", _I, 1, _SOME, "replicas that must acknowledge a write", _same("min.insync.replicas")),
        Entry(
            "unclean.leader.election.enable", _B, False, None,
            "whether an out-of-sync replica may become leader", _same("unclean.leader.election.enable"),
        ),
        Entry("leader.replication.throttled.replicas", _LIST, (), None, "replicas throttled on the leader's side"),
        Entry("follower.replication.throttled.replicas", _LIST, (), None, "replicas throttled on the follower's side"),
        Entry("remote.storage.enable", _B, False, None, "whether the topic is tiered"),
        Entry("remote.log.copy.disable", _B, False, None, "whether tiered segments are no longer uploaded"),
        Entry("remote.log.delete.on.disable", _B, False, None, "whether tiered data is deleted when tiering is disabled"),
        Entry(
            "local.retention.ms", _L, -2, Range(-2), "age at which tiered segments leave the disk, ms",
            _log("local.retention.ms"),
        ),
        Entry(
            "local.retention.bytes", _L, -2, Range(-2), "size above which tiered segments leave the disk, bytes",
            _log("local.retention.bytes"),
        ),
        Entry(
            "internal.segment.bytes", _I, None, Range(1, INT_MAX),
            "segment size without the lower bound of segment.bytes, for tests",
        ),
    )
}  # fmt: skip
