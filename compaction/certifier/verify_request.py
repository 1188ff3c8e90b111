"""What a call of ``verify`` asks for."""

from __future__ import annotations

from dataclasses import dataclass, field

from compaction.config import Resolver
from compaction.logdir.discover import Selector
from compaction.names import TopicPartition


@dataclass(frozen=True)
class VerifyRequest:
    """One verification.

    ``before`` and ``after`` are log directories, absolute; without ``before`` those of ``after`` were cleaned in place.
    ``now_ms`` is the time of the round, ``exact`` whether it is known. ``logs``: only these, of those that the selector
    takes. ``metadata_dirs``: see ``CompactionRequest``. The other flags: see ``CleaningRules``.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    now_ms: int
    exact: bool = False
    selector: Selector = field(default_factory=Selector)
    logs: frozenset[TopicPartition] | None = None
    resolver: Resolver = field(default_factory=Resolver)
    metadata_dirs: tuple[str, ...] = ()
    include_active: bool = False
    several_rounds: bool = False
    strict: bool = False
