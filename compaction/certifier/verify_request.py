"""The request of ``verify`` and ``compact --verify``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compaction.config import Resolver
from compaction.logdir.discover import Selector
from compaction.names import TopicPartition


@dataclass(frozen=True)
class VerifyRequest:
    """One verification.

    ``before`` and ``after`` are absolute paths of log directories. Without ``before``, those of ``after`` were cleaned in
    place. ``logs``: only these of the selected logs. ``cleaned_to``: their cleaner checkpoints before, ``None`` without an
    entry, for directories that were cleaned in place. ``metadata_dirs``, ``kafka_version``: see ``CompactionRequest``.
    ``refused``: logs that an erasure did not touch; ``failed``: logs whose erasure failed; ``sources_remain``: the run has not
    yet removed the replaced segments. For other fields see ``CleaningRules``.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    now_ms: int
    exact: bool = False
    selector: Selector = field(default_factory=Selector)
    logs: frozenset[TopicPartition] | None = None
    cleaned_to: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    resolver: Resolver = field(default_factory=Resolver)
    metadata_dirs: tuple[str, ...] = ()
    kafka_version: str | None = None
    include_active: bool = False
    refused: frozenset[TopicPartition] = frozenset()
    failed: frozenset[TopicPartition] = frozenset()
    sources_remain: bool = False
    several_rounds: bool = False
    strict: bool = False
