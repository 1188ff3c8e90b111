"""The keyed hash against its published vectors and a plain implementation, one key at a time and many at once."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from compaction.kernels import keys as module
from compaction.kernels.keys import NO_KEY, HashSecret, hash_keys, siphash
from tests.oracle.siphash import naive_siphash

ROOT = Path(__file__).resolve().parents[2]
WORD = st.integers(0, 2**64 - 1)
SECRETS = st.builds(HashSecret, WORD, WORD)
#: of the published vectors: the secret is 00 01 .. 0f, a message of n bytes 00 01 .. n - 1
VECTOR_SECRET = HashSecret(0x0706050403020100, 0x0F0E0D0C0B0A0908)
#: SipHash-2-4-128, from the reference implementation
REFERENCE = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    16: "6ee2a4ca67b054bbfd3315bf85230577",
    63: "5150d1772f50834a503e069a973fbd7c",
}
#: SipHash-1-3-128, from Rust's
RUST = {0: "e77ebcb22788a5befd62db6add303001", 1: "fc6f370460d3eda85e0573cc2b2ff063"}


@njit
def hashed(data, at, size, state):  # type: ignore[no-untyped-def]
    """The hash of ``data[at : at + size]``."""
    return siphash(state[0], state[1], np.int64(data.ctypes.data + at), size)


@njit
def hashed_rows(table, rows, state):  # type: ignore[no-untyped-def]
    """``hash_keys``, which only kernels can call."""
    hash_keys(table, rows, state)


@njit
def with_key(low, high):  # type: ignore[no-untyped-def]
    """The hash of a key whose SipHash this is."""
    return module._with_key(low, high)


def text(halves: Sequence[int]) -> str:
    return b"".join(int(half).to_bytes(8, "little") for half in halves).hex()


def rows_of(keys: Sequence[bytes | None]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """A table of these keys as ``hash_keys`` takes it, its last column counting; the bytes that it points to, each key at any
    alignment and right before the next one."""
    data = np.frombuffer(bytearray(b"".join(key or b"" for key in keys) or b"."), np.uint8)
    table, at = np.empty((len(keys), 3), np.uint64), data.ctypes.data
    for row, key in enumerate(keys):
        table[row] = (0, NO_KEY, row) if key is None else (at, len(key), row)
        at += len(key or b"")
    return table, data


@pytest.mark.parametrize("size", REFERENCE)
def test_the_plain_implementation_has_the_reference_vectors(size: int) -> None:
    found = naive_siphash(VECTOR_SECRET.low, VECTOR_SECRET.high, bytes(range(size)), 2, 4)
    assert text(found) == REFERENCE[size]


@pytest.mark.parametrize("size", RUST)
def test_the_hash_has_the_vectors_of_another_implementation(size: int) -> None:
    data = np.arange(64, dtype=np.uint8)
    assert text(hashed(data, 0, size, VECTOR_SECRET.state())) == RUST[size]


@pytest.mark.parametrize("size", [*range(101), 127, 128, 129, 255, 256, 257, 1_000, 70_001])
def test_a_key_of_any_size_at_any_address_is_hashed_as_the_plain_implementation_does(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + 8).astype(np.uint8)
    secret = HashSecret.random()
    for at in range(8) if size < 1_000 else (3,):
        expected = naive_siphash(secret.low, secret.high, data[at : at + size].tobytes())
        assert tuple(map(int, hashed(data, at, size, secret.state()))) == expected


@given(st.lists(st.none() | st.binary(max_size=160), max_size=80), SECRETS)
def test_many_keys_are_hashed_like_single_keys(keys: list[bytes | None], secret: HashSecret) -> None:
    table, data = rows_of(keys)
    hashed_rows(table, len(keys), secret.state())
    expected = [(0, 0) if key is None else naive_siphash(secret.low, secret.high, key) for key in keys]
    assert table.tolist() == [[*halves, row] for row, halves in enumerate(expected)]
    assert data.tobytes() == b"".join(key or b"" for key in keys) or not any(keys)


@pytest.mark.parametrize("size", [0, 7, 8, 36, 127, 128, 500])
def test_full_lanes_and_remainders_are_hashed_alike_within_one_call(size: int) -> None:
    secret = HashSecret.random()
    state = secret.state()
    for count in (1, 15, 16, 17, 40):
        keys = [bytes([n]) * size for n in range(count)]
        table, _data = rows_of(keys)
        hashed_rows(table, count, state)
        assert table[:, :2].tolist() == [list(naive_siphash(secret.low, secret.high, key)) for key in keys]


def test_rows_after_the_last_one_are_not_changed() -> None:
    keys = [b"0123456789"] * 20
    table, _data = rows_of(keys)
    before = table[17:].tolist()
    hashed_rows(table, 17, HashSecret(1, 2).state())
    assert table[17:].tolist() == before


def test_no_key_hashes_to_the_reserved_value_of_null_keys() -> None:
    zero, most = np.uint64(0), np.uint64(2**64 - 1)
    assert tuple(map(int, with_key(zero, zero))) == (0, 1)
    for low, high in ((0, 1), (1, 0), (most, zero), (zero, most), (zero, np.uint64(2))):
        assert tuple(map(int, with_key(np.uint64(low), np.uint64(high)))) == (low, high)


_AT_THE_EDGES = """
import ctypes, mmap, sys
import numpy as np
from tests.kernels.test_siphash import hashed_rows, HashSecret
page = mmap.PAGESIZE
pages = mmap.mmap(-1, 3 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
libc = ctypes.CDLL(None)
for edge in (0, 2):
    assert libc.mprotect(ctypes.c_void_p(start + edge * page), ctypes.c_size_t(page), 0) == 0
state = HashSecret.random().state()
for size in range(150):
    for address in (start + page, start + 2 * page - size):
        table = np.array([[address, size, 0]] * 16 + [[address, size, 0]], np.uint64)
        hashed_rows(table, 17, state)
print("read nothing else")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
def test_no_byte_outside_of_a_key_is_read() -> None:
    """Keys lie at both ends of a page, between two that may not be read."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", _AT_THE_EDGES], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "read nothing else\n", f"{done.returncode} {done.stderr[-2_000:]}"


@given(SECRETS)
def test_a_secret_cannot_be_logged_by_mistake(secret: HashSecret) -> None:
    for shown in (repr(secret), str(secret), f"{secret}", f"{[secret]}"):
        assert "HashSecret()" in shown
    assert pickle.loads(pickle.dumps(secret)) == secret  # noqa: S301 - made here


def test_secrets_differ() -> None:
    drawn = [HashSecret.random() for _ in range(100)]
    assert len({half for secret in drawn for half in (secret.low, secret.high)}) == 200
