"""Encodings that no current producer writes but Kafka reads: varints that are not minimal, header names that are not UTF-8."""

from __future__ import annotations

import random
import struct

from tests.damage.harm import reseal
from tests.kafka.encode import varint
from tests.oracle import compression
from tests.oracle.records import HEADER, Reader

#: names that are not UTF-8: single bytes, truncated, overlong, surrogates; and one that is UTF-8
BAD_NAMES = (
    b"\xff", b"a\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3\x28", b"\xed\xa0\x80", b"\x80\x81", b"\xc0\xaf", b"\xf5"
)  # fmt: skip
GOOD_NAMES = (b"", "é".encode(), "😀".encode(), b"\xef\xbf\xbd")

_CRC_FROM = 21
#: what follows the CRC of a batch of magic 2: attributes, last offset delta, base timestamp, max timestamp
_STATED = struct.Struct(">hiqq")


def loosen(raw: bytes, rng: random.Random) -> bytes:
    """The same batch of magic 2 with padded varints and with attributes in its records."""
    fields = HEADER.unpack_from(raw)
    codec, count = fields[5] & 7, fields[12]
    if not count:
        return raw
    body = _Loosener(compression.decompress(codec, raw[HEADER.size :]), rng).records(count)
    counted = raw[_CRC_FROM : HEADER.size] + compression.compress(codec, body)
    return reseal(raw[:8] + struct.pack(">i", 9 + len(counted)) + raw[12:_CRC_FROM] + counted)


def spoil(raw: bytes, rng: random.Random) -> bytes:
    """The batch with a header that Kafka reads but would not write: times before the epoch, transactional without producer."""
    fields = list(HEADER.unpack_from(raw))
    if fields[9] >= 0 or rng.random() < 0.5:
        fields[7] = -5
    else:
        fields[5] |= 0x10
    return reseal(HEADER.pack(*fields) + raw[HEADER.size :])


def restate(raw: bytes, rng: random.Random) -> bytes:
    """A batch of magic 2 with other times and unused bits in its header, which a cleaner copies with the batch."""
    attributes, delta, base_ms, max_ms = _STATED.unpack_from(raw, _CRC_FROM)
    attributes |= rng.choice((0, 0x08, 0x80, 0x4000))
    base_ms, max_ms = (time + rng.choice((0, 0, -(10**7), -1, 1, 10**8)) for time in (base_ms, max_ms))
    return reseal(raw[:_CRC_FROM] + _STATED.pack(attributes, delta, base_ms, max_ms) + raw[_CRC_FROM + _STATED.size :])


def padded(value: int, size: int) -> bytes:
    """A zig-zag varint of at least ``size`` bytes."""
    shortest = varint(value)
    more = size - len(shortest)
    if more <= 0:
        return shortest
    return shortest[:-1] + bytes([shortest[-1] | 0x80]) + b"\x80" * (more - 1) + b"\0"


class _Loosener(Reader):
    def __init__(self, data: bytes, rng: random.Random) -> None:
        super().__init__(data)
        self.rng = rng

    def records(self, count: int) -> bytes:
        return b"".join(self._record() for _ in range(count))

    def _record(self) -> bytes:
        self.varint()
        self.take(1)
        body = bytes([self.rng.choice((0, 0, 0x55, 0xFF))])
        body += self._padded(self.varint(), 10) + self._padded(self.varint(), 5) + self._field() + self._field()
        headers = self.varint()
        body += self._padded(headers, 5) + b"".join(self._field() for _ in range(2 * headers))
        return self._padded(len(body), 5) + body

    def _field(self) -> bytes:
        size = self.varint()
        return self._padded(size if size >= 0 else self.rng.choice((-1, -1, -7)), 5) + self.take(max(size, 0))

    def _padded(self, value: int, longest: int) -> bytes:
        return padded(value, self.rng.choice((0, 0, 2, 3, longest)))
