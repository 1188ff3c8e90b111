"""Key selection of the certifier, independent of ``KeyPattern.matching`` and of the kernels that erase."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compaction.certifier.key_patterns.expressions import translated
from compaction.formats.key_criteria import BYTES, PREFIX, KeyCriteria, KeyPattern


def matching(criteria: KeyCriteria, keys: pa.Array) -> NDArray[np.bool_]:
    """bool[n]: whether each key of a binary array without nulls is selected."""
    coded = keys.dictionary_encode()
    distinct = coded.dictionary
    selected = pc.is_in(distinct, value_set=criteria.keys).to_numpy(zero_copy_only=False).astype(np.bool_)
    texts = distinct.to_pylist() if criteria.patterns else []
    for pattern in criteria.patterns:
        selected |= np.fromiter(map(matcher(pattern), texts), np.bool_, len(texts))
    matches: NDArray[np.bool_] = selected[coded.indices.to_numpy()] if len(distinct) else np.zeros(0, np.bool_)
    return matches


@lru_cache(maxsize=256)
def matcher(pattern: KeyPattern) -> Callable[[bytes], bool]:
    """A function that tests whether a key matches.

    :raises FormatError: the expression is not supported without RE2
    """
    if pattern.kind == PREFIX:
        prefix = pattern.text.encode()
        return lambda key: key.startswith(prefix)
    is_bytes = pattern.kind == BYTES
    expression, encoding = re.compile(translated(pattern.text, is_bytes=is_bytes)), "latin-1" if is_bytes else "utf-8"

    def matches(key: bytes) -> bool:
        try:
            return expression.fullmatch(key.decode(encoding)) is not None
        except UnicodeDecodeError:
            return False

    return matches
