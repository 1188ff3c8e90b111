"""Writes large, realistic logs fast: v2 batches, offset and time indexes, as a broker writes them.

Keys are ``key-%012d``, uniformly random from a set; values are random bytes. Batches have as many records as fit into
``batch_bytes``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit

from compaction.kernels.bytes import put_varlong, varlong_size
from compaction.kernels.compiling import crc32c, load_crc32c, store16, store32, store64

# cached functions call it
load_crc32c()

_KEY_BYTES = 16


@dataclass(frozen=True)
class Profile:
    """A generated log. ``keys``: at most so many distinct keys; ``unique``: consecutive instead of random keys."""

    total_bytes: int
    keys: int
    value_bytes: int = 100
    batch_bytes: int = 16_384
    segment_bytes: int = 1 << 30
    codec: int = 0
    unique: bool = False
    seed: int = 1
    first_timestamp_ms: int = 1_700_000_000_000


@njit(cache=True)
def _put_record(out, w, delta, key, noise, noise_at, value_bytes):  # type: ignore[no-untyped-def]
    body = 1 + 1 + varlong_size(delta) + varlong_size(_KEY_BYTES) + _KEY_BYTES + varlong_size(value_bytes) + value_bytes + 1
    w = put_varlong(out, w, body)
    out[w] = 0
    w = put_varlong(out, w + 1, 0)
    w = put_varlong(out, w, delta)
    w = put_varlong(out, w, _KEY_BYTES)
    for i, letter in enumerate((107, 101, 121, 45)):
        out[w + i] = letter
    for i in range(12):
        out[w + 15 - i] = 48 + key % 10
        key //= 10
    w = put_varlong(out, w + _KEY_BYTES, value_bytes)
    for i in range(value_bytes):
        out[w + i] = noise[noise_at + i]
    out[w + value_bytes] = 0
    return w + value_bytes + 1


@njit(cache=True)
def fill(out, offset, timestamp, keys, noise, value_bytes, batch_bytes, rows):  # type: ignore[no-untyped-def]
    """Batches for ``keys`` (int64[n]) into ``out``: ``(bytes, batches)``; ``rows`` int64[b, 3] gets position, last offset,
    size."""
    w, done, batches = 0, 0, 0
    per_batch = max(1, batch_bytes // (value_bytes + _KEY_BYTES + 12))
    while done < len(keys):
        n = min(per_batch, len(keys) - done)
        at = w
        w += 61
        for i in range(n):
            noise_at = (offset + done + i) * 977 % (len(noise) - value_bytes)
            w = _put_record(out, w, i, keys[done + i], noise, noise_at, value_bytes)
        header = out.ctypes.data + at
        store64(np.uintp(header), np.int64(offset + done))
        store32(np.uintp(header + 8), np.int64(w - at - 12))
        store32(np.uintp(header + 12), np.int64(0))
        out[at + 16] = 2
        store16(np.uintp(header + 21), np.int64(0))
        store32(np.uintp(header + 23), np.int64(n - 1))
        store64(np.uintp(header + 27), np.int64(timestamp + batches))
        store64(np.uintp(header + 35), np.int64(timestamp + batches))
        store64(np.uintp(header + 43), np.int64(-1))
        store16(np.uintp(header + 51), np.int64(-1))
        store32(np.uintp(header + 53), np.int64(-1))
        store32(np.uintp(header + 57), np.int64(n))
        store32(np.uintp(header + 17), np.int64(crc32c(np.uintp(header + 21), np.uintp(w - at - 21))))
        rows[batches, 0], rows[batches, 1], rows[batches, 2] = at, offset + done + n - 1, w - at
        done += n
        batches += 1
    return w, batches


def _indexes(base: int, rows: np.ndarray, timestamps: np.ndarray) -> tuple[bytes, bytes]:
    """Offset and time index as ``LogSegment.append`` with an interval of 4096 bytes writes them."""
    index, times, since = [], [], 0
    latest, latest_offset, last_time = -1, -1, -1
    for (position, last_offset, size), timestamp in zip(rows.tolist(), timestamps.tolist(), strict=True):
        if timestamp > latest:
            latest, latest_offset = timestamp, last_offset
        if since > 4096:
            index.append((last_offset - base, position))
            if latest > last_time:
                times.append((latest, latest_offset - base))
                last_time = latest
            since = 0
        since += size
    if latest > last_time:
        times.append((latest, latest_offset - base))
    return np.array(index, ">i4").tobytes(), np.array(times, np.dtype([("t", ">i8"), ("o", ">i4")])).tobytes()


def _recompress(data: bytes, rows: np.ndarray, codec: int) -> tuple[bytes, np.ndarray]:
    """The same batches with their records compressed."""
    import struct

    import google_crc32c

    from compaction.formats.codecs import Codec, compress

    out, new_rows, at = [], rows.copy(), 0
    for i, (position, _, size) in enumerate(rows.tolist()):
        payload = bytes(compress(Codec(codec), data[position + 61 : position + size]))
        tail = struct.pack(">h", codec) + data[position + 23 : position + 61] + payload
        head = data[position : position + 8] + struct.pack(">i", 61 + len(payload) - 12) + data[position + 12 : position + 17]
        out.append(head + struct.pack(">I", google_crc32c.value(tail)) + tail)
        new_rows[i, 0], new_rows[i, 2] = at, 61 + len(payload)
        at += 61 + len(payload)
    return b"".join(out), new_rows


def write_log(directory: Path, profile: Profile) -> int:
    """Write segments until ``total_bytes`` (of plain batches) are reached, and an empty active one; the log end offset."""
    directory.mkdir(parents=True)
    generator = np.random.default_rng(profile.seed)
    noise = generator.integers(0, 64, 1 << 20, dtype=np.uint8)
    record = profile.value_bytes + _KEY_BYTES + 12
    chunk = max(1, min(1 << 19, (64 << 20) // record))
    out = np.empty(chunk * (record + 8) + 61 * chunk, np.uint8)
    rows = np.empty((chunk, 3), np.int64)
    offset, written, base, in_segment, batch = 0, 0, 0, 0, 0
    parts: list[np.ndarray] = []
    stamps: list[np.ndarray] = []
    log = (directory / f"{base:020d}.log").open("wb")

    def close() -> None:
        log.close()
        index, times = _indexes(base, np.concatenate(parts), np.concatenate(stamps))
        (directory / f"{base:020d}.index").write_bytes(index)
        (directory / f"{base:020d}.timeindex").write_bytes(times)

    while written < profile.total_bytes:
        n = min(chunk, max(1, (profile.total_bytes - written) // record + 1))
        keys = np.arange(offset, offset + n) if profile.unique else generator.integers(0, profile.keys, n)
        size, batches = fill(
            out, offset, profile.first_timestamp_ms + batch, keys, noise, profile.value_bytes, profile.batch_bytes, rows
        )
        data, table = out[:size].tobytes(), rows[:batches].copy()
        if profile.codec:
            data, table = _recompress(data, table, profile.codec)
        if in_segment and in_segment + len(data) > profile.segment_bytes:
            close()
            base, in_segment, parts, stamps = offset, 0, [], []
            log = (directory / f"{base:020d}.log").open("wb")
        table[:, 0] += in_segment
        log.write(data)
        parts.append(table)
        stamps.append(profile.first_timestamp_ms + batch + np.arange(batches))
        in_segment += len(data)
        written += size
        offset += n
        batch += batches
    close()
    for kind in (".log", ".index", ".timeindex"):
        (directory / f"{offset:020d}{kind}").touch()
    return offset
