"""The certifier's own decision which keys are meant."""

from __future__ import annotations

import pyarrow as pa
import pytest

from compaction.certifier.key_patterns.key_matcher import matching
from compaction.formats.key_criteria import KeyCriteria, KeyPattern

KEYS = ["josé".encode(), b"jos\xe9", b"jose", "©".encode(), b"", b"\xff", "josé".encode()]


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
