"""What a call of a job asks for, once its options are checked."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from compaction.config import Policy, Resolver
from compaction.names import TopicPartition


@dataclass(frozen=True)
class CompactionRequest:
    """One run of the log cleaner.

    ``log_dirs`` are absolute and do not overlap. ``topics`` match whole names; together with ``partitions`` they choose the
    logs, and without either every log is chosen. ``as_of_ms`` is the present for every rule, milliseconds since the epoch.
    ``resolver`` knows every source of configuration but the metadata log of a log directory (``Resolver.with_metadata``).
    ``include_active`` says that the directories are exports that no broker will append to, ``allow_keyless`` that records
    without a key may go. ``metadata_dirs`` are absolute: log directories, or metadata logs themselves, whose metadata log
    applies to log directories of the same cluster (``compaction.logdir.settings.metadata_sources``).
    """

    log_dirs: tuple[str, ...]
    as_of_ms: int
    topics: tuple[re.Pattern[str], ...] = ()
    partitions: frozenset[TopicPartition] = frozenset()
    resolver: Resolver = field(default_factory=Resolver)
    metadata_dirs: tuple[str, ...] = ()
    dry_run: bool = False
    output_dir: str | None = None
    include_active: bool = False
    allow_keyless: bool = False


@dataclass(frozen=True)
class ComparisonRequest:
    """One comparison of policies over the logs of ``base``, each on top of its configuration; nothing is written."""

    base: CompactionRequest
    policies: tuple[Policy, ...]
