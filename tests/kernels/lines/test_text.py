"""Text written by kernels against text written by Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.formats.java_text import java_text
from compaction.kernels.lines import text

MIN, MAX = -(2**63), 2**63 - 1


def written(size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.full(size, 0xEE, np.uint8)


@given(st.integers(MIN, MAX))
def test_numbers_are_decimal(value: int) -> None:
    out = written(len(str(MIN)))
    end = text.put_long(out, 0, np.int64(value))
    assert out[:end].tobytes().decode() == str(value)
    assert set(out[end:].tolist()) <= {0xEE}


@pytest.mark.parametrize("value", [0, 9, 10, -1, -10, MIN, MAX, *(10**n for n in range(19)), *(10**n - 1 for n in range(19))])
def test_numbers_at_the_limits(value: int) -> None:
    out = written(len(str(MIN)))
    assert out[: text.put_long(out, 0, np.int64(value))].tobytes().decode() == str(value)


@settings(max_examples=300)
@given(st.lists(st.sampled_from([b"a", b"\xe9", "é€𝄞".encode(), b"\xed\xa0\x80", b"\xf0\x9f", b"\x80", b"\xf4\x90", b"\xc0"])))
def test_bytes_are_decoded_as_in_java(parts: list[bytes]) -> None:
    raw = np.frombuffer(b"-" + b"".join(parts) + b"-", np.uint8)
    out = written(text.TEXT_GROWTH * len(raw))
    end = text.put_text(out, 0, raw, 1, len(raw) - 1)
    assert out[:end].tobytes().decode() == java_text(b"".join(parts))


@given(st.binary(max_size=20))
def test_any_bytes_are_decoded_as_in_java(raw: bytes) -> None:
    data = np.frombuffer(raw, np.uint8)
    out = written(text.TEXT_GROWTH * len(data))
    assert out[: text.put_text(out, 0, data, 0, len(data))].tobytes().decode() == java_text(raw)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (text.BASE_OFFSET, "baseOffset: "),
        (text.ZSTD, "zstd"),
        (text.LINE_END, "\n"),
        (text.NONE, "none"),
        (text.COMMA, ","),
    ],
)
def test_labels_are_written(label: int, expected: str) -> None:
    out = written(32)
    assert out[: text.put_label(out, 0, label)].tobytes().decode() == expected
