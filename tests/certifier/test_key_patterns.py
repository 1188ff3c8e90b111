"""The certifier's own decision which keys are meant: expressions match what RE2, which erases, matches, or are refused."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from compaction.certifier.erased_keys import matcher, matching
from compaction.formats.keys import KeyCriteria, KeyPattern
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
    "a", "ab?", "a|b", "a|ab|abc", "(a|b)+", "(?:ab)*", "a{2}", "a{1,3}b?", "a{2,}", "a*?b", "a+?b??",
    ".", "..", "a.c", r"a\.c", "[à-ÿ]+", "[^a]", "[^à-ÿ]+", "jos[eé]", "josé?", "é+", "(?i)jose", "(?i)k", "(?i)s", "(?i)i",
    "(?i)[^k]", "(?i)[a-c]+", r"(?i)\w", r"(?i)\W", "(?i)[j-l]", "(?i)[^j-s]", r"jos\xe9", r"user-1\x007", r"\d+", r"\D",
    r"\w+", r"\W", r"[\d_]+", r"[^\d]", r"[\D]", r"[\w-]+", "[a-]", "[-a]", r"[\]]", r"[\\]", "^a$", "^", "$", "(a$|^b)",
    r"\^", r"\$", r"\{2\}", "}", r"\|", r"a\|b", "[+.]", r"\t", r"\v", r"[\t\v]", "()", "a||b", "(|a)b", "[ -~]+",
    "[\x00-\U0010ffff]", "(a|b){2}", "(ab){2}", "user-(1[0-9]|2)(:.*)?",
]  # fmt: skip
#: RE2 accepts these
REFUSED = [
    "a{,2}", "(?P<n>a)b", "(?-s).", "(?-s:.)+", "(?i)josé", r"(?i)\xe9", "(?i)ß", "(?i:k)|a", "a(?i)|K",
    r"jos\x{e9}", r"\101", r"\0", r"\s", r"[\s]", "[]a]", "[^]a]", "[[:alpha:]]", r"\pL", r"[\pN_]", r"\p{Greek}", r"\Qa.c\E",
    "(?m)^a$", r"\Aa\z", r"a\b.*", r"\B", "(?U)a.+", "(?s).", r"a\C", "[a||b]", "[a&&b]", "^*a",
]  # fmt: skip
PIECES = [
    "a", "b", "K", "é", ".", r"\d", r"\W", r"\.", r"\xe9", "[a-c]", "[^k]", r"[\w-]", "[-|&]", "(", "(?:", ")", "|", "*", "+",
    "?", "{2}", "{1,}", "{,2}", "*?", "^", "$", "]", "}", "-", "&", "~", "[", r"\s", "(?i)", "\n", "#", " ",
]  # fmt: skip


def by_re2(pattern: str, keys: list[bytes]) -> list[bytes]:
    meant = KeyPattern.parse(pattern).matching(pa.array(keys, pa.binary()))
    return [key for key, found in zip(keys, meant.tolist(), strict=True) if found]


def by_certifier(pattern: str, keys: list[bytes]) -> list[bytes]:
    return list(filter(matcher(KeyPattern.parse(pattern)), keys))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_matches_what_re2_matches(expression: str) -> None:
    keys = [text.encode() for text in TEXTS]
    assert by_certifier(f"regex={expression}", keys) == by_re2(f"regex={expression}", keys)


@pytest.mark.parametrize(
    "expression",
    [
        ".", "..", r"\xe9", r"(?i)\xe9", "(?i)josE", r"[\xe0-\xff]+", "[^a]", r"\w+", r"jos.+", r"\x00.*", "(?i)K",
        r"[\x80-\xff]{2}",
    ],
)  # fmt: skip
def test_an_expression_over_bytes_matches_what_re2_matches(expression: str) -> None:
    keys = [*(bytes([number]) for number in range(256)), *(text.encode() for text in TEXTS), b"jos\xe9", b"\x00\xff\n"]
    assert by_certifier(f"bytes={expression}", keys) == by_re2(f"bytes={expression}", keys)


def test_random_expressions_match_what_re2_matches_or_are_refused() -> None:
    rng, keys, judged = random.Random(7), [text.encode() for text in TEXTS], 0
    for _ in range(3_000):
        kind, expression = rng.choice(("regex", "bytes")), "".join(rng.choices(PIECES, k=rng.randrange(1, 6)))
        try:
            pattern = KeyPattern.parse(f"{kind}={expression}")
            found = list(filter(matcher(pattern), keys))
        except FormatError:
            continue
        judged += 1
        assert found == by_re2(f"{kind}={expression}", keys), expression
    assert judged > 500


@pytest.mark.parametrize("expression", REFUSED)
def test_an_expression_that_python_may_read_differently_is_refused(expression: str) -> None:
    pattern = KeyPattern.parse(f"regex={expression}")
    with pytest.raises(FormatError, match=r"has .*(does not read|list both cases)"):
        matcher(pattern)


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
