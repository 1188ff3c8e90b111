"""Writes the batches of scenarios."""

from __future__ import annotations

from collections.abc import Sequence

from tests.kafka.encode import ABORT, COMMIT, Batch, Legacy, Producer, Record, marker

#: the producer's timestamp of offset 0
T = 1_700_000_000_000
HOUR, DAY = 3_600_000, 86_400_000


class Writer:
    """Assigns offsets. Keys are single letters; a capital letter is a tombstone of its key, a dot a record without a key.

    :param offset: the first offset
    :param size: bytes of a value
    :param time_ms: the time of offset 0; each offset is a second later
    """

    def __init__(self, offset: int = 0, size: int = 20, time_ms: int = T) -> None:
        self.offset = offset
        self.size = size
        self.time_ms = time_ms
        self._sequences: dict[int, int] = {}

    def records(self, keys: str | Sequence[bytes | None]) -> list[Record]:
        """One record per key, each an offset and a second after the previous one."""
        made = []
        for key in keys:
            value: bytes | None = (b"%d:" % self.offset).ljust(self.size, b"v")
            if isinstance(key, str):
                value = None if key.isupper() else value
                key = None if key == "." else key.lower().encode()
            made.append(Record(self.offset, self.time_ms + self.offset * 1000, key, value))
            self.offset += 1
        return made

    def batch(self, keys: str | Sequence[bytes | None], **fields: object) -> bytes:
        """A plain batch; ``fields`` are those of ``Batch``."""
        return Batch(self.records(keys), **fields).encode()  # type: ignore[arg-type]

    def each(self, keys: str, **fields: object) -> list[bytes]:
        """One batch per key."""
        return [self.batch(key, **fields) for key in keys]

    def legacy(self, keys: str | Sequence[bytes | None], magic: int, codec: str = "none") -> bytes:
        """A message set."""
        return Legacy(self.records(keys), magic, codec).encode()

    def sent(self, producer: Producer, keys: str, *, transactional: bool = True, codec: str = "none") -> bytes:
        """A batch of a producer, with consecutive sequence numbers."""
        first = self._sequences.get(producer.id, 0)
        self._sequences[producer.id] = first + len(keys)
        return Batch(
            self.records(keys),
            codec,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=first,
            transactional=transactional,
        ).encode()

    def commit(self, producer: Producer) -> bytes:
        """The marker that commits."""
        return self._end(producer, COMMIT)

    def abort(self, producer: Producer) -> bytes:
        """The marker that aborts."""
        return self._end(producer, ABORT)

    def _end(self, producer: Producer, kind: int) -> bytes:
        self.offset += 1
        return marker(self.offset - 1, self.time_ms + (self.offset - 1) * 1000, producer, kind)
