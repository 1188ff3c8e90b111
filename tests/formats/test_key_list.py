"""Lists of keys, in each format and malformed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from compaction.formats.keys import KeyPlaces, line_numbers, read_lines, shards
from compaction.formats.primitives import FormatError


@pytest.mark.parametrize(
    ("kind", "data", "keys"),
    [
        ("text", b"a\nbb\r\n\n \xff\rc\nlast", [b"a", b"bb", b" \xff\rc", b"last"]),
        ("text", b"", []),
        ("text", b"\n\n", []),
        ("hex", b"00ff\r\n\n6A", [b"\x00\xff", b"j"]),
        ("base64", b"AP8=\n\nag==\n", [b"\x00\xff", b"j"]),
        ("json", b'"\\u00e9"\n""\n{"text": "x"}\n{"base64": "AP8="}', ["é".encode(), b"", b"x", b"\x00\xff"]),
    ],
)
def test_a_list_has_a_key_in_each_line_that_is_not_empty(kind: str, data: bytes, keys: list[bytes]) -> None:
    assert read_lines(data, kind).to_pylist() == keys
    assert len(line_numbers(data)) == len(keys)


def test_the_first_line_of_each_key_is_known() -> None:
    one, other = b"a\n\nb\na\n", b"\r\nb\nc"
    keys = pa.concat_arrays([read_lines(one, "text"), read_lines(other, "text")])
    places = KeyPlaces.of(keys, [("one", line_numbers(one)), ("other", line_numbers(other))])
    assert places.by_file() == [("one", [1, 3]), ("other", [3])]
    assert places.only(np.array([False, True, False])).by_file() == [("one", [3])]
    assert KeyPlaces.of(keys[:0], []).by_file() == []


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("hex", b"abc"), ("hex", b"zz"), ("base64", b"a"), ("base64", b"a b="), ("json", b"1"), ("json", b"{"),
        ("json", b'{"text": 1}'), ("json", b'{"other": "x"}'), ("json", b'"\xff"'),
        ("json", b"[" * 100_000), ("json", b'{"text": ' * 100_000),
    ],
)  # fmt: skip
def test_a_malformed_line_is_named_by_its_number_and_not_shown(kind: str, line: bytes) -> None:
    with pytest.raises(FormatError) as error:
        read_lines(b"\n\n" + line, kind)
    assert str(error.value) == f"line 3 is not a key in the format {kind}"


@pytest.mark.parametrize("kind", ["text", "hex", "base64", "json"])
@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"])
def test_a_byte_order_mark_is_refused_and_not_taken_for_a_part_of_the_first_key(kind: str, mark: bytes) -> None:
    with pytest.raises(FormatError, match="begins with a byte order mark of UTF-"):
        read_lines(mark + b'"61"\n', kind)
    assert read_lines(b"a" + mark, "text").to_pylist() == [b"a" + mark]


def test_shards_hold_all_keys_in_order_within_their_memory() -> None:
    keys = pa.array([b"x" * (at % 7) for at in range(100)], pa.binary())
    parts = shards(keys, 60, 8)
    assert [key for part in parts for key in part.to_pylist()] == keys.to_pylist()
    assert all(sum(len(key) + 8 for key in part.to_pylist()) <= 60 for part in parts)
    assert len(shards(keys[:3], 1, 8)) == 3
    assert [len(part) for part in shards(keys[:0], 60, 8)] == [0]
