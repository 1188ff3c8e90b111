"""Keys that are meant, by list, prefix and regular expression; lists of keys, in each format and malformed."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from compaction.formats.keys import KeyCriteria, KeyPattern, KeyPlaces, read_lines, salted_digest, shards
from compaction.formats.primitives import FormatError

KEYS = [b"", b"a", b"ab", b"b\n\xff", "é".encode(), b"user-1:x", b"user-10:x", b"a" * 70_000]


def meant(keys: list[bytes], *patterns: str) -> list[bytes]:
    criteria = KeyCriteria.of(pa.array(keys, pa.binary()), tuple(map(KeyPattern.parse, patterns)))
    matching = criteria.matching(pa.array(KEYS, pa.binary()))
    return [key for key, found in zip(KEYS, matching.tolist(), strict=True) if found]


def test_listed_keys_are_meant_byte_by_byte() -> None:
    assert meant([b"", b"a", b"missing", b"a" * 69_999, b"a"]) == [b"", b"a"]
    assert meant([b"b\n\xff", b"a" * 70_000]) == [b"b\n\xff", b"a" * 70_000]


def test_a_pattern_matches_complete_keys_only() -> None:
    assert meant([], "prefix=user-1:") == [b"user-1:x"]
    assert meant([], "regex=a") == [b"a"]
    assert meant([], "bytes=a|ab|b.*") == [b"a", b"ab", b"b\n\xff"]
    assert meant([], "regex=a|ab|b.*") == [b"a", b"ab"]
    assert meant([b"a"], "regex=é") == [b"a", "é".encode()]
    assert meant([], "regex=a{2,5}b?") == []


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("regex=[à-ÿ]+", ["àÿ"]), ("regex=jos[eé]", ["jose", "josé"]), ("regex=(?i)josé", ["josé", "JOSÉ"]),
        ("regex=josé?", ["jos", "josé"]),
        (r"regex=jos\x{e9}", ["josé"]), ("regex=.", ["©", "½", "£"]), ("prefix=josé", ["josé"]),
        (r"bytes=jos\xc3\xa9", ["josé"]),
    ],
)  # fmt: skip
def test_letters_outside_ascii_are_matched_as_characters_and_not_as_their_bytes(pattern: str, keys: list[str]) -> None:
    given = ["jos", "jose", "josé", "JOSÉ", "©", "½", "£", "àÿ"]
    for more in ([], [b"\xff"]):
        array = pa.array([*(each.encode() for each in given), *more], pa.binary())
        found = KeyPattern.parse(pattern).matching(array).tolist()
        assert [key for key, is_meant in zip(given, found, strict=False) if is_meant] == keys
        assert not any(found[len(given) :])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        *((given, "") for given in ("bytes=é", "bytes=", "user", "glob=a*", "prefix=", "regex=", "regex=a)|(b")),
        ("regex=customer: (17", "missing )"), ("regex=(17", "missing )"), ("regex=x\n: (17", "missing )"),
        ("regex=17\\", "trailing \\"), ("regex=[z-a]", "invalid character class range"),
        ("regex=17: (?z: a)", "invalid perl operator"), ("regex=17**", "bad repetition operator"),
    ],
)  # fmt: skip
def test_what_is_no_pattern_is_refused_without_showing_it(given: str, reason: str) -> None:
    with pytest.raises(FormatError) as error:
        KeyPattern.parse(given)
    text = given.partition("=")[2]
    assert not text or text not in str(error.value)
    if reason:
        assert str(error.value) == f"is not a regular expression of RE2: {reason}"


def test_equal_criteria_have_the_same_secret_under_the_same_salt_only() -> None:
    one = KeyCriteria.of(pa.array([b"a", b"b", b"a"], pa.binary()))
    other = KeyCriteria.of(pa.array([b"b", b"a"], pa.binary()))
    assert one.secret(b"salt") == other.secret(b"salt") != other.secret(b"tlas")
    assert other.secret(b"salt") != KeyCriteria.of(other.keys, (KeyPattern.parse("prefix=a"),)).secret(b"salt")
    assert salted_digest(b"salt", b"key").hex() == hashlib.sha256(b"saltkey").hexdigest()


def test_a_guess_costs_64_mib_outside_of_these_tests() -> None:
    given = "import pyarrow as pa; from compaction.formats.keys import KeyCriteria"
    given += "; print(KeyCriteria.of(pa.array([b'a'], pa.binary())).secret(b'salt').hex())"
    done = subprocess.run([sys.executable, "-c", given], capture_output=True, text=True, check=True)
    hashed = hashlib.sha256(b"salt" + b"key\0a").hexdigest().encode()
    assert done.stdout.strip() == hashlib.scrypt(hashed, salt=b"salt", n=1 << 16, r=8, p=1, maxmem=80 << 20, dklen=32).hex()


def test_neither_keys_nor_patterns_are_in_the_repr() -> None:
    assert "secret" not in repr(KeyCriteria.of(pa.array([b"secret"], pa.binary()), (KeyPattern.parse("prefix=secret"),)))


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
    found, lines = read_lines(data, kind)
    assert (found.to_pylist(), len(lines)) == (keys, len(keys))


def test_the_first_line_of_each_key_is_known() -> None:
    (one, one_lines), (other, other_lines) = (read_lines(data, "text") for data in (b"a\n\nb\na\n", b"\r\nb\nc"))
    keys = pa.concat_arrays([one, other])
    places = KeyPlaces.of(keys, [("one", one_lines), ("other", other_lines)])
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
    assert read_lines(b"a" + mark, "text")[0].to_pylist() == [b"a" + mark]


def test_shards_hold_all_keys_in_order_within_their_memory() -> None:
    keys = pa.array([b"x" * (at % 7) for at in range(100)], pa.binary())
    parts = shards(keys, 60, 8)
    assert [key for part in parts for key in part.to_pylist()] == keys.to_pylist()
    assert all(sum(len(key) + 8 for key in part.to_pylist()) <= 60 for part in parts)
    assert len(shards(keys[:3], 1, 8)) == 3
    assert [len(part) for part in shards(keys[:0], 60, 8)] == [0]
