"""The rules of the log cleaner that differ between versions of Kafka, as values.

``compaction.rules.record_retention`` states the rules that all versions have in common, in the form of Kafka 4.4, and names
the exceptions that a field of ``KafkaRules`` changes. No other module compares versions.

Not mirrored, because both lose data that other versions keep:

* KAFKA-14055 (2.8): a marker is dropped if a key has the bytes of the marker's key. Here markers are never looked up.
* KAFKA-13194 (up to 3.0): the range ends at the first unstable offset, even if the high watermark is lower. Here the high
  watermark always bounds the range, which then ends at the last stable offset as since 3.1.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from compaction.errors import UsageError

_DAY_MS = 86_400_000


class Retention(enum.Enum):
    """The time that decides about tombstones and markers (KAFKA-8522)."""

    SEGMENT_MTIME = "segment mtime"
    DELETE_HORIZON = "delete horizon of the batch"


class LastBatch(enum.Enum):
    """The outcome of a round's last batch if it loses all records (KAFKA-17076, KAFKA-20452)."""

    DROPPED = "dropped"
    RETAINED = "retained, empty"
    RETAINED_AT_HIGH_WATERMARK = "retained, empty, if the high watermark follows it"


class OldFormat(enum.Enum):
    """The output format of batches of magic 0 and 1 that lose some records (KIP-724)."""

    KEEPS_MAGIC = "keeps its magic"
    BECOMES_V2 = "becomes v2"


@dataclass(frozen=True)
class KafkaRules:
    """The rules of some versions.

    :ivar tombstone_retention: of v2 batches (KAFKA-8522); before v2 it is always the segment's mtime
    :ivar last_batch: of a round (KAFKA-17076, KAFKA-20452)
    :ivar old_format: of batches of magic 0 and 1 (KIP-724)
    :ivar groups_empty_segments: an empty segment joins any group (KAFKA-12889)
    :ivar limits_decompressed_records: ``max.decompressed.message.bytes`` fails the cleaning of a log with a larger record
    :ivar producer_expiration: the broker setting after which an idle producer is forgotten (KIP-854)
    :ivar producer_expiration_default_ms: its default
    """

    tombstone_retention: Retention
    last_batch: LastBatch
    old_format: OldFormat
    groups_empty_segments: bool
    limits_decompressed_records: bool
    producer_expiration: str
    producer_expiration_default_ms: int

    @property
    def mtime_only(self) -> bool:
        """Whether the segment's mtime decides for tombstones and markers of all batches."""
        return self.tombstone_retention is Retention.SEGMENT_MTIME

    @property
    def keeps_magic(self) -> bool:
        """Whether batches of magic 0 and 1 keep it."""
        return self.old_format is OldFormat.KEEPS_MAGIC

    def described(self) -> dict[str, str | int | bool]:
        """Each rule by name, for reports."""
        return {name: value.value if isinstance(value, enum.Enum) else value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        """One line."""
        return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in self.described().items())


_2_8 = KafkaRules(
    tombstone_retention=Retention.SEGMENT_MTIME,
    last_batch=LastBatch.DROPPED,
    old_format=OldFormat.KEEPS_MAGIC,
    groups_empty_segments=False,
    limits_decompressed_records=False,
    producer_expiration="transactional.id.expiration.ms",
    producer_expiration_default_ms=7 * _DAY_MS,
)
_3_0 = replace(_2_8, groups_empty_segments=True)
_3_1 = replace(_3_0, tombstone_retention=Retention.DELETE_HORIZON)
_3_4 = replace(_3_1, producer_expiration="producer.id.expiration.ms", producer_expiration_default_ms=_DAY_MS)
_3_9_2 = replace(_3_4, last_batch=LastBatch.RETAINED)
_4_0 = replace(_3_9_2, old_format=OldFormat.BECOMES_V2)
_4_2 = replace(_4_0, limits_decompressed_records=True)
_4_4 = replace(_4_2, last_batch=LastBatch.RETAINED_AT_HIGH_WATERMARK)

#: each minor version has the rules of its newest patch; 3.9 changed them in a patch
RULES: Mapping[str, KafkaRules] = MappingProxyType(
    {
        "2.8": _2_8,
        "3.0": _3_0,
        **dict.fromkeys(("3.1", "3.2", "3.3"), _3_1),
        **dict.fromkeys(("3.4", "3.5", "3.6", "3.7", "3.8", "3.9.0", "3.9.1"), _3_4),
        **dict.fromkeys(("3.9.2", "3.9"), _3_9_2),
        **dict.fromkeys(("4.0", "4.1"), _4_0),
        # since its last patch; older ones do not have the setting
        "4.2": _4_2,
        "4.3": _4_0,
        "4.4": _4_4,
    }
)
OLDEST, NEWEST = "2.8", "4.4"
#: the first level of ``metadata.version`` in each Kafka version, ascending
FIRST_LEVELS = {
    "3.0": 1, "3.1": 2, "3.2": 3, "3.3": 4, "3.4": 8, "3.5": 9, "3.6": 12, "3.7": 15, "3.8": 20, "3.9": 21,
    "4.0": 22, "4.1": 26, "4.2": 28, "4.3": 30, "4.4": 31,
}  # fmt: skip
LAST_LEVEL = 33


def rules_of(version: str) -> KafkaRules:
    """The rules of a version, e.g. ``3.9``, which is the newest patch, or ``3.9.1``.

    :raises UsageError: not a version whose rules are known
    """
    minor = ".".join(version.split(".")[:2])
    rules = RULES.get(version) or (RULES.get(minor) if _is_patch(version) else None)
    if rules is None:
        message = f"the rules of Kafka {version!r} are not known, only those of {OLDEST} to {NEWEST}"
        raise UsageError(message, hint=f"give one of {', '.join(RULES)}, or another patch of these")
    return rules


def _is_patch(version: str) -> bool:
    parts = version.split(".")
    return len(parts) == 3 and all(part.isascii() and part.isdecimal() for part in parts)
