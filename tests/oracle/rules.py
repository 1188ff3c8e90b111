"""The rules that differ between versions of Kafka, read from the source of each; independent of the package's own."""

from __future__ import annotations

from dataclasses import dataclass

from tests.kafka.jars import REFERENCE

ALWAYS, NEVER, AT_HIGH_WATERMARK = "always", "never", "at high watermark"


@dataclass(frozen=True)
class NaiveRules:
    """``retains_last``: whether the last batch of a round stays without records. ``producer_expiration_ms`` is the default of
    ``producer.id.expiration.ms``, before that of ``transactional.id.expiration.ms``."""

    by_mtime: bool
    retains_last: str
    keeps_magic: bool
    joins_empty: bool
    producer_expiration_ms: int


def rules_in(release: str) -> NaiveRules:
    """Those of a release, e.g. ``3.9.1``."""
    number = tuple(int(part) for part in release.split("."))
    retains = ALWAYS if number < (4, 4) else AT_HIGH_WATERMARK
    return NaiveRules(
        by_mtime=number < (3, 1),
        retains_last=NEVER if number < (3, 9, 2) else retains,
        keeps_magic=number < (4, 0),
        joins_empty=number >= (3, 0),
        producer_expiration_ms=86_400_000 * (1 if number >= (3, 4) else 7),
    )


NEWEST = rules_in(REFERENCE)
