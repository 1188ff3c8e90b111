"""The certifier's own decision which keys are meant; what is translated matches the same texts as RE2, which erases."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from compaction.certifier import characters
from compaction.certifier.key_patterns import matching, translated
from compaction.formats.key_criteria import KeyCriteria, KeyPattern
from compaction.formats.primitives import FormatError

KEYS = ["josé".encode(), b"jos\xe9", b"jose", "©".encode(), b"", b"\xff", "josé".encode()]
TEXTS = [
    "", "a", "A", "b", "ab", "aab", "abc", "a.c", "a\nb", "\n", "a b", "aé", "é", "É", "jos", "jose", "josé", "JOSÉ", "Josё",
    "©", "½", "£", "à", "ÿ", "àÿ", "Ā", "k", "K", "\u212a", "s", "S", "ſ", "ß", "ẞ", "ss", "İ", "i", "I", "ı", "ΐ", "\u1fd3",
    "ключ", "КЛЮЧ", "鍵", "0", "9", "42", "٣", "_", "-", "]", "^", "\\", "[", "{", "}", "{2}", "a{,2}", "\t", "\x0b", "\u00a0",
    "user-17", "USER-17", "user-17:x", "user-1\x007", "a|b", "(", ")", "$", "😀", "a😀", "e\u0301", ".", "+", "aaaa", "abab",
    "~", "a~",
]  # fmt: skip
EXPRESSIONS = [
    "a", "ab?", "a|b", "a|ab|abc", "(a|b)+", "(?:ab)*", "a{2}", "a{1,3}b?", "a{2,}", "a{,2}", "a*?b", "a+?b??", "(?P<n>a)b",
    ".", "..", "a.c", r"a\.c", "(?-s).", "(?-s:.)+", "(?-s)a.b", "[à-ÿ]+", "[^a]", "[^à-ÿ]+", "jos[eé]", "josé?", "é+",
    "(?i)josé", "(?i)k", "(?i)s", "(?i)[ſ]", "(?i)ß", "(?i)i", "(?i)ı", "(?i)İ", "(?i)ΐ", "(?i)[^k]", "(?i)ключ", "(?i:k)|a",
    "a(?i)|K",
    "(?i)a(?-i)b", "(?i)[a-c]+", "(a(?i)b)|c", r"jos\x{e9}", r"jos\xe9", r"\x{1f600}", r"\101", r"\0", r"user-1\x007", r"\d+",
    r"\D", r"\s", r"\S+", r"\w+", r"\W", r"[\d_]+", r"[^\d]", r"[\D]", r"[\w-]+", "[a-]", "[-a]", "[]a]", "[^]a]", r"[\]]",
    r"[\\]", "[[:alpha:]]+", "[[:^alpha:]]", "[[:upper:][:digit:]]+", "(?i)[[:upper:]]", "[[:punct:]]", "[[:space:]]", r"\pL+",
    r"\PL", r"\p{Lu}", r"\p{^Lu}", r"(?i)\p{Lu}", r"(?i)\P{Lu}", r"[\pN_]", r"\p{Any}", r"\pC", r"\Qa.c\E", r"\Q[\E",
    r"\Qab\E+", "[[:print:]]+",
    "^a$", "^", "$", "(?m)a$.^b", "(?m)^a.b$", r"\Aa\z", r"a\b.*", r"\B", r"\b", r"a\Bb", r"\b\w+\b.*", r"user\b-.*", "(?U)a.+",
    "(?U)a+?", r"\^", r"\$", r"\{2\}", "}", r"\|", r"a\|b", r"[+.]", r"\t", r"\v", r"[\t\v]", "(?s).", "(?ms-i).+", "()",
    "a||b", "(|a)b", "[ -~]+", "[\x00-\U0010ffff]", "(?i)[\u0400-\u045f]+", "(a|b){2}", "(ab){2}", "user-(1[0-9]|2)(:.*)?",
]  # fmt: skip


def by_re2(pattern: str, keys: list[bytes]) -> list[bytes]:
    meant = KeyPattern.parse(pattern).matching(pa.array(keys, pa.binary()))
    return [key for key, found in zip(keys, meant.tolist(), strict=True) if found]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_translated_expression_matches_what_re2_matches(expression: str) -> None:
    compiled = re.compile(translated(expression))
    found = [text.encode() for text in TEXTS if compiled.fullmatch(text)]
    assert found == by_re2(f"regex={expression}", [text.encode() for text in TEXTS])


@pytest.mark.parametrize(
    "expression",
    [
        ".", "..", r"\xe9", r"\x{e9}", r"(?i)\xe9", "(?i)josE", r"[\xe0-\xff]+", "[^a]", r"\C", r"a\C\C", r"\w+", r"\pL",
        r"jos.+", r"\x00.*", "(?i)K", r"[\x80-\xff]{2}",
    ],
)  # fmt: skip
def test_an_expression_over_bytes_matches_what_re2_matches(expression: str) -> None:
    keys = [*(bytes([number]) for number in range(256)), *(text.encode() for text in TEXTS), b"jos\xe9", b"\x00\xff\n"]
    compiled = re.compile(translated(expression, is_bytes=True))
    found = [key for key in keys if compiled.fullmatch(key.decode("latin-1"))]
    assert found == by_re2(f"bytes={expression}", keys)


def test_what_cannot_be_judged_without_re2_is_refused() -> None:
    for expression in (r"a\C", r"\p{Greek}", r"[\p{Greek}]"):
        KeyPattern.parse(f"regex={expression}")
        with pytest.raises(FormatError):
            translated(expression)


def test_sets_are_joined_and_negated() -> None:
    assert characters.of("bacx") == ((97, 99), (120, 120))
    assert characters.joined(characters.of("ab"), characters.of("cx")) == characters.of("abcx")
    assert characters.without(()) == characters.EVERY
    assert characters.without(characters.EVERY) == ()
    assert characters.without(characters.without(characters.of("abz"))) == characters.of("abz")


@pytest.mark.parametrize(
    ("keys", "patterns", "expected"),
    [
        ([b"jose", b"\xff"], [], [2, 5]),
        ([], ["regex=jos[eé]"], [0, 2, 6]),
        ([], ["regex=.*"], [0, 2, 3, 4, 6]),
        ([], ["bytes=.*"], [0, 1, 2, 3, 4, 5, 6]),
        ([], [r"bytes=jos\xe9"], [1]),
        ([], ["prefix=jos", "regex=[à-ÿ]"], [0, 1, 2, 6]),
        ([b""], ["prefix=josé"], [0, 4, 6]),
    ],
)
def test_the_certifier_finds_the_keys_that_the_erasure_finds(
    keys: list[bytes], patterns: list[str], expected: list[int]
) -> None:
    criteria = KeyCriteria.of(pa.array(keys, pa.binary()), tuple(map(KeyPattern.parse, patterns)))
    array = pa.array(KEYS, pa.binary())
    assert [number for number, found in enumerate(matching(criteria, array).tolist()) if found] == expected
    assert criteria.matching(array).tolist() == matching(criteria, array).tolist()
    assert matching(criteria, array[:0]).tolist() == []
