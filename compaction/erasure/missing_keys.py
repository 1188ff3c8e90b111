"""Which of the given keys no record has. They are named by their lines in the given files, never by value: a key that is
mistyped may be somebody's all the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from compaction.erasure.find_matches import HASHED, Erasure, FoundKeys
from compaction.formats.key_criteria import salted_digest
from compaction.formats.key_list import KeyPlaces

#: lines that the report lists
_MOST_LISTED = 10_000


class MissingKeys(NamedTuple):
    """``number`` keys, by file and line."""

    number: int
    lines: tuple[tuple[str, int], ...] = ()

    def document(self) -> dict[str, Any]:
        """The fields of the report."""
        listed = self.lines[:_MOST_LISTED]
        return {"keys_not_found": self.number, "not_found": [{"file": path, "line": line} for path, line in listed]}


def missing_keys(erasure: Erasure, found: FoundKeys, places: KeyPlaces | None) -> MissingKeys:
    """The keys of the list that are not among those ``found``; without ``places`` they are only counted."""
    keys = erasure.criteria.keys
    hashes = np.array([salted_digest(erasure.salt, key) for key in keys.to_pylist()], HASHED)
    missing = ~np.isin(hashes, found.hashes)
    lines = () if places is None else places.only(missing).by_file()
    return MissingKeys(int(missing.sum()), tuple((path, line) for path, of_file in lines for line in of_file))
