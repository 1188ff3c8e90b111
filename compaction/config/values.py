"""The effective configuration of one topic and of the broker, each value with its source.

Of Kafka's ``LogConfig``, ``KafkaConfig`` and ``CleanerConfig`` these are the entries that a log at rest depends on.
``TopicConfig`` names its attributes as the entries, in snake case; units are in the names, and defaults are Kafka's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from compaction.config.entries import DAY_MS, MIB, NO_RECORD_LIMIT
from compaction.config.kinds import LONG_MAX
from compaction.config.sources import DEFAULT, Origin, Source


@dataclass(frozen=True)
class TopicConfig:
    """The configuration in effect for one topic.

    ``segment_bytes`` is ``internal.segment.bytes`` if that is set (Kafka: ``LogConfig.segmentSize``). A retention of -1 is
    unlimited. ``policy_guess`` is the reason that ``cleanup.policy`` is a guess, with the remedy
    (``compaction.config.resolver``); ``None`` if the policy is known.
    """

    cleanup_compact: bool = False
    cleanup_delete: bool = True
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_index_bytes: int = 10 * MIB
    index_interval_bytes: int = 4096
    min_cleanable_dirty_ratio: float = 0.5
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    file_delete_delay_ms: int = 60_000
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    max_decompressed_message_bytes: int = NO_RECORD_LIMIT
    remote_storage_enable: bool = False
    sources: Mapping[str, Source] = field(default_factory=dict, compare=False, repr=False)
    policy_guess: str | None = field(default=None, compare=False)

    def source(self, name: str) -> Source:
        """The source of the value of a topic-level entry, e.g. of ``min.cleanable.dirty.ratio``."""
        return self.sources.get(name, DEFAULT)

    @property
    def configured(self) -> dict[str, dict[str, object]]:
        """The entries that some source sets: each with its ``value`` and its ``source``."""
        sources = {name: source for name, source in self.sources.items() if source.origin is not Origin.DEFAULT}
        return {
            name: {"value": getattr(self, name.replace(".", "_")), "source": str(source)} for name, source in sources.items()
        }

    @property
    def cleanup_policy(self) -> str:
        """The policy as Kafka spells it: ``compact``, ``delete``, ``compact,delete`` or empty."""
        return ",".join(name for name, on in (("compact", self.cleanup_compact), ("delete", self.cleanup_delete)) if on)


@dataclass(frozen=True)
class BrokerConfig:
    """The configuration in effect for one broker."""

    dedupe_buffer_bytes: int = 128 * MIB
    load_factor: float = 0.9
    io_max_bytes_per_second: float = sys.float_info.max
    cleaner_threads: int = 1
    producer_id_expiration_ms: int = DAY_MS
    sources: Mapping[str, Source] = field(default_factory=dict, compare=False, repr=False)

    def source(self, name: str) -> Source:
        """The source of the value of a broker-level entry, e.g. of ``log.cleaner.dedupe.buffer.size``."""
        return self.sources.get(name, DEFAULT)
