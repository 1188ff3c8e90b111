"""The effective configuration of one topic and of the broker, each value with its source.

``TopicConfig`` mirrors Kafka 4.3.0's ``LogConfig``, ``BrokerConfig`` the parts of ``KafkaConfig`` and ``CleanerConfig`` that
matter to a log at rest. Attributes are the entries' names in snake case and carry their units; the defaults are Kafka's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from compaction.config.entries import DAY_MS, HOUR_MS, MIB
from compaction.config.kinds import LONG_MAX
from compaction.config.sources import DEFAULT, Source


@dataclass(frozen=True)
class TopicConfig:
    """The configuration in effect for one topic.

    ``segment_bytes`` is ``internal.segment.bytes`` where that is set, as ``LogConfig.segmentSize`` has it. A limit of -1 is
    no limit. ``policy_guess`` says why ``cleanup.policy`` is a guess, and what to do (``compaction.config.policy_guess``);
    ``None`` if the policy is known.
    """

    cleanup_compact: bool = False
    cleanup_delete: bool = True
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 * MIB
    index_interval_bytes: int = 4096
    min_cleanable_dirty_ratio: float = 0.5
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    file_delete_delay_ms: int = 60_000
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    max_message_bytes: int = MIB + 12
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    preallocate: bool = False
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = HOUR_MS
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    local_retention_ms: int = -2
    local_retention_bytes: int = -2
    internal_segment_bytes: int | None = None
    sources: Mapping[str, Source] = field(default_factory=dict, compare=False, repr=False)
    policy_guess: str | None = field(default=None, compare=False)

    def source(self, name: str) -> Source:
        """Where the value of a topic-level name, e.g. ``min.cleanable.dirty.ratio``, comes from."""
        return self.sources.get(name, DEFAULT)

    @property
    def cleanup_policy(self) -> str:
        """The policy as it is written: ``compact``, ``delete``, ``compact,delete`` or nothing."""
        return ",".join(name for name, on in (("compact", self.cleanup_compact), ("delete", self.cleanup_delete)) if on)


@dataclass(frozen=True)
class BrokerConfig:
    """The broker's configuration in effect, as far as it matters to a log at rest."""

    dedupe_buffer_bytes: int = 128 * MIB
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 * 1024
    io_max_bytes_per_second: float = sys.float_info.max
    cleaner_threads: int = 1
    producer_id_expiration_ms: int = DAY_MS
    transactional_id_expiration_ms: int = 7 * DAY_MS
    transaction_max_timeout_ms: int = 900_000
    message_max_bytes: int = MIB + 12
    log_dirs: tuple[str, ...] = ("/tmp/kafka-logs",)  # noqa: S108 - Kafka's default
    sources: Mapping[str, Source] = field(default_factory=dict, compare=False, repr=False)

    def source(self, name: str) -> Source:
        """Where the value of a broker-level name, e.g. ``log.cleaner.dedupe.buffer.size``, comes from."""
        return self.sources.get(name, DEFAULT)
