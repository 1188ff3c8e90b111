"""C functions and CPU instructions that kernels call: CRC-32C, prefetch, pread, loads of bytes and words, loads and stores of
big-endian integers.

They are plain Python here, for kernels that run interpreted; ``intrinsics`` replaces them in compiled kernels. Kernels pass
addresses (``array.ctypes.data + position``) and are responsible for their bounds.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

import google_crc32c
import numpy as np

from compaction.kernels.compiling.jit import INTERPRETED, inner


class _Native:
    """Stands for a function of this module in compiled kernels. Python cannot call it."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _numba_type_(self) -> Any:
        """numba's type of this object."""
        from compaction.kernels.compiling import intrinsics

        return intrinsics.type_of(self._name)


def _native(function: Callable[..., Any]) -> Any:
    return function if INTERPRETED else _Native(function.__name__)


@_native
def crc32c(address: Any, length: Any) -> np.uint32:
    """CRC-32C of the bytes at ``address``, by the CPU's instruction if it has one."""
    return np.uint32(google_crc32c.value(ctypes.string_at(int(address), int(length))))


@_native
def prefetch(address: Any) -> None:
    """Load the cache line at ``address`` for reading and writing; never faults."""


@_native
def pread(descriptor: Any, address: Any, size: Any, position: Any) -> int:
    """Read at most ``size`` bytes at ``position`` of a file to ``address``. Returns their number, -1 after an error."""
    try:
        data = os.pread(int(descriptor), int(size), int(position))
    except OSError:
        return -1
    ctypes.memmove(int(address), data, len(data))
    return len(data)


def _integer(address: Any, size: int, order: Literal["little", "big"]) -> int:
    return int.from_bytes(ctypes.string_at(int(address), size), order, signed=order == "big")


@_native
def load8(address: Any) -> np.uint8:
    return np.uint8(_integer(address, 1, "little"))


@_native
def load32(address: Any) -> np.uint64:
    """Four bytes, the first one lowest; the address need not be aligned."""
    return np.uint64(_integer(address, 4, "little"))


@_native
def load64(address: Any) -> np.uint64:
    """Eight bytes, the first one lowest; the address need not be aligned."""
    return np.uint64(_integer(address, 8, "little"))


@_native
def load_be16(address: Any) -> np.int64:
    """The big-endian int16 at ``address``, which need not be aligned."""
    return np.int64(_integer(address, 2, "big"))


@_native
def load_be32(address: Any) -> np.int64:
    """The same of an int32."""
    return np.int64(_integer(address, 4, "big"))


@_native
def load_be64(address: Any) -> np.int64:
    """The same of an int64."""
    return np.int64(_integer(address, 8, "big"))


def _put_integer(address: Any, value: Any, size: int) -> None:
    low = int(value) & ((1 << 8 * size) - 1)
    ctypes.memmove(int(address), low.to_bytes(size, "big"), size)


@_native
def store16(address: Any, value: Any) -> None:
    """Store the low two bytes of int64 ``value``, big-endian; the address need not be aligned."""
    _put_integer(address, value, 2)


@_native
def store32(address: Any, value: Any) -> None:
    """The same of four bytes."""
    _put_integer(address, value, 4)


@_native
def store64(address: Any, value: Any) -> None:
    """The same of all eight bytes."""
    _put_integer(address, value, 8)


@_native
def move(target: Any, source: Any, length: Any) -> None:
    """``memmove`` between addresses."""
    ctypes.memmove(int(target), int(source), int(length))


@inner
def copy_bytes(out, pos, data, start, stop):
    """Copy ``data[start:stop]`` to ``out[pos:]`` and return the position after it; both uint8 arrays.

    :raises IndexError: a range is out of bounds
    """
    size = stop - start
    if size < 0 or start < 0 or stop > len(data) or pos < 0 or pos + size > len(out):
        raise IndexError("bytes to copy are out of the array's bounds")
    move(np.uintp(out.ctypes.data + pos), np.uintp(data.ctypes.data + start), np.uintp(size))
    return pos + size
