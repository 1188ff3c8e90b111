"""Reads lists of keys, one a line: as text, hexadecimal, base64 or JSON. Errors have numbers of lines, from 1, never keys.

| format | a line is |
| --- | --- |
| ``text`` | the key's bytes; it cannot contain a line feed, or end with a carriage return |
| ``hex`` | two digits a byte |
| ``base64`` | RFC 4648 with padding |
| ``json`` | a string, whose UTF-8 is the key, or a key as ``dump-log`` prints it: ``{"text": …}`` or ``{"base64": …}`` |

An empty line is no key. The empty key is ``""`` in JSON. A file that begins with a byte order mark is refused.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from compaction.formats.primitives import FormatError

TEXT, HEX, BASE64, JSON = FORMATS = ("text", "hex", "base64", "json")
_LINE_FEED, _RETURN = 10, 13
#: a file with one was written as text by an editor: no key begins with it
_BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "UTF-8", codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
#: positions in an array of keys have 32 bits
MAX_BYTES = 2**31 - 1


def read_lines(data: bytes, kind: str) -> pa.Array:
    """The keys of a file, as a binary array without nulls, in order, equal ones included.

    :param kind: one of ``FORMATS``
    :raises FormatError: a line is malformed, with its number, or the file begins with a byte order mark
    """
    mark = next((name for mark, name in _BYTE_ORDER_MARKS.items() if data.startswith(mark)), None)
    if mark is not None:
        raise FormatError(f"begins with a byte order mark of {mark}, which would be a part of the first key: save it without")
    raw = np.frombuffer(data, np.uint8)
    starts, ends = _lines(raw)
    if kind == TEXT:
        return _text_keys(raw, starts[ends > starts], ends[ends > starts])
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    return decode(((number, data[start:end]) for number, (start, end) in enumerate(bounds, 1)), kind)


def line_numbers(data: bytes) -> NDArray[np.int64]:
    """The number of the line of each key that ``read_lines`` finds, int64[n]."""
    starts, ends = _lines(np.frombuffer(data, np.uint8))
    numbers: NDArray[np.int64] = np.flatnonzero(ends > starts) + 1
    return numbers


class KeyPlaces(NamedTuple):
    """The first occurrences of distinct keys: their file, an index into ``paths``, and their line, from 1 (int64[n] each)."""

    paths: tuple[str, ...]
    files: NDArray[np.int64]
    lines: NDArray[np.int64]

    @classmethod
    def of(cls, keys: pa.Array, lines_by_file: Sequence[tuple[str, NDArray[np.int64]]]) -> KeyPlaces:
        """Of the distinct ``keys``, in the order of ``pc.unique``; ``lines_by_file`` has the lines of all keys."""
        # codes are numbered as keys appear
        _, first = np.unique(keys.dictionary_encode().indices.to_numpy(), return_index=True)
        files = np.repeat(np.arange(len(lines_by_file)), [len(lines) for _, lines in lines_by_file])
        lines = np.concatenate([np.empty(0, np.int64), *(lines for _, lines in lines_by_file)])
        return cls(tuple(path for path, _ in lines_by_file), files[first], lines[first])

    def only(self, selected: NDArray[np.bool_]) -> KeyPlaces:
        return self._replace(files=self.files[selected], lines=self.lines[selected])

    def by_file(self) -> list[tuple[str, list[int]]]:
        """The lines in each file that has some."""
        lines_by_file = ((path, self.lines[self.files == number].tolist()) for number, path in enumerate(self.paths))
        return [(path, lines) for path, lines in lines_by_file if lines]


def decode(lines: Iterable[tuple[int, bytes]], kind: str) -> pa.Array:
    """The keys of numbered lines, or cells of a column.

    :raises FormatError: a line is malformed, with its number
    """
    decode_one = _DECODERS[kind]
    keys = []
    for number, line in lines:
        if not line:
            continue
        try:
            keys.append(decode_one(line))
        except (ValueError, RecursionError):
            raise FormatError(f"line {number} is not a key in the format {kind}") from None
    return pa.array(keys, pa.binary())


def _lines(raw: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and ends of all lines, without their line ends."""
    feeds = np.flatnonzero(raw == _LINE_FEED)
    starts = np.concatenate([[0], feeds + 1]).astype(np.int64)
    ends = np.concatenate([feeds, [len(raw)]]).astype(np.int64)
    filled = np.flatnonzero(ends > starts)
    ends[filled[raw[ends[filled] - 1] == _RETURN]] -= 1
    return starts, ends


def _text_keys(raw: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.Array:
    edges = np.zeros(len(raw) + 1, np.int8)
    edges[starts] += 1
    edges[ends] -= 1
    kept = raw[np.cumsum(edges[:-1], dtype=np.int8) > 0]
    offsets = np.zeros(len(starts) + 1, np.int32)
    np.cumsum(ends - starts, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(kept)])


def _from_json(line: bytes) -> bytes:
    value = json.loads(line)
    if isinstance(value, dict) and len(value) == 1:
        ((name, text),) = value.items()
        if name == BASE64 and isinstance(text, str):
            return _from_base64(text.encode())
        value = text if name == TEXT else None
    if not isinstance(value, str):
        raise ValueError("not a string")  # noqa: TRY004 - one error for all malformed lines
    return value.encode()


def _from_base64(line: bytes) -> bytes:
    return base64.b64decode(line, validate=True)


_DECODERS: dict[str, Callable[[bytes], bytes]] = {
    TEXT: bytes,
    HEX: binascii.unhexlify,
    BASE64: _from_base64,
    JSON: _from_json,
}


def shards(keys: pa.Array, max_bytes: int, bytes_per_key: int) -> list[pa.Array]:
    """The keys in runs that need at most ``max_bytes``, with ``bytes_per_key`` for each besides its own; at least one run."""
    offsets = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, keys.offset * 4) if len(keys) else np.zeros(1, np.int32)
    needed = offsets.astype(np.int64) - offsets[0] + bytes_per_key * np.arange(len(offsets))
    cuts = [0]
    while cuts[-1] < len(keys):
        fits = int(np.searchsorted(needed, needed[cuts[-1]] + max_bytes, "right")) - 1
        cuts.append(max(cuts[-1] + 1, fits))
    return [keys.slice(first, end - first) for first, end in pairwise(cuts)] or [keys]
