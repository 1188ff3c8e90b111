"""Certifies what a request asks for, by any runner of tasks; or a copy of logs with these settings; or an erasure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from compaction.certifier.certificate import VerifyReport
from compaction.certifier.certify import certify_pairs
from compaction.certifier.erased_keys import ErasedKeys
from compaction.certifier.erasure_certificate import Certified, certify_erasure
from compaction.certifier.find_pairs import VerifyRequest, find_pairs
from compaction.certifier.records import RANGE_BYTES
from compaction.engine import Engine
from compaction.formats.keys import KeyCriteria
from tests.local_job import TopicConfigs, resolver_of
from tests.local_passes import LocalPasses


def certify(request: VerifyRequest, range_bytes: int = RANGE_BYTES, runner: Engine | None = None) -> VerifyReport:
    """In place also of logs of which nothing was replaced."""
    pairs = find_pairs(request, unreplaced=True)
    return certify_pairs(runner or LocalPasses(), pairs, request.now_ms, range_bytes)


def certify_copy(before: Path, after: Path, now_ms: int, topics: TopicConfigs, **options: Any) -> VerifyReport:
    """Certifies log directories with these settings as of the time of the round; ``options`` are other fields of a request."""
    return certify(VerifyRequest((str(before),), (str(after),), now_ms, exact=True, resolver=resolver_of(topics), **options))


def erased_keys(*keys: bytes, tombstones: bool = False) -> ErasedKeys:
    return ErasedKeys(KeyCriteria.of(pa.array(keys, pa.binary())), tombstones)


def certify_erased(
    before: Path, after: Path, keys: Sequence[bytes], now_ms: int, *, tombstones: bool = False, **options: Any
) -> Certified:
    """Certifies a copy without these keys; ``options`` are other fields of a request."""
    request = VerifyRequest((str(before),), (str(after),), now_ms, **{"include_active": True, **options})
    return certify_erasure(LocalPasses, request, erased_keys(*keys, tombstones=tombstones))
