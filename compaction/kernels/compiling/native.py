"""C functions and CPU instructions that kernels call: CRC-32C, prefetch, loads of bytes and words, loads and stores of
big-endian integers.

CRC-32C is that of the ``google-crc32c`` package. Its shared library is loaded into the process once, and LLVM resolves the name
when it links a kernel, so that compiled kernels can be cached on disk. Kernels pass addresses (``array.ctypes.data +
position``) and are responsible for their bounds. With numba disabled, plain Python replaces all of them.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from pathlib import Path
from typing import Any

import google_crc32c
import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from compaction.kernels.compiling.jit import inner


def _crc32c_library() -> str:
    """The path of libcrc32c: shipped beside the ``google_crc32c`` wheel, else the system's."""
    package = Path(google_crc32c.__file__).parent
    places = (package.parent / "google_crc32c.libs", package / ".dylibs", package / "lib")
    found = [path for place in places if place.is_dir() for path in sorted(place.iterdir()) if "crc32c" in path.name]
    library = str(found[0]) if found else ctypes.util.find_library("crc32c")
    if library is None:
        raise ImportError("google-crc32c has no native library on this platform; install a wheel of it or libcrc32c")
    return library


llvmlite.binding.load_library_permanently(_crc32c_library())


@intrinsic
def crc32c(typing_context: Any, address: Any, length: Any) -> Any:
    """``crc32c(address, length) -> uint32``: CRC-32C, by the CPU's instruction if it has one."""
    signature = types.uint32(types.uintp, types.uintp)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, half = ir.IntType(64), ir.IntType(32)
        kind = ir.FunctionType(half, [half, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "crc32c_extend")
        return builder.call(function, [ir.Constant(half, 0), *args])

    return signature, codegen


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """``prefetch(address)``: load the cache line at ``address`` for reading and writing; never faults."""
    signature = types.void(types.uintp)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        half = ir.IntType(32)
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, half, half, half])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, ir.Constant(half, 1), ir.Constant(half, 3), ir.Constant(half, 1)])
        return context.get_dummy_value()

    return signature, codegen


def _load(bits: int, kind: Any, *, big_endian: bool = False) -> Any:
    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = builder.load(builder.inttoptr(args[0], ir.IntType(bits).as_pointer()), align=1)
            word = builder.bswap(word) if big_endian else word
            if bits == kind.bitwidth:
                return word
            return (builder.sext if kind.signed else builder.zext)(word, ir.IntType(kind.bitwidth))

        return kind(types.uintp), codegen

    return load


#: ``load8(address) -> uint8``
load8 = _load(8, types.uint8)
#: ``load32(address) -> uint64``: four bytes, the first one lowest; the address need not be aligned
load32 = _load(32, types.uint64)
#: ``load64(address) -> uint64``: eight bytes, the first one lowest; the address need not be aligned
load64 = _load(64, types.uint64)
#: ``load_be16(address) -> int64``: the big-endian int16 there; the address need not be aligned
load_be16 = _load(16, types.int64, big_endian=True)
#: the same of an int32
load_be32 = _load(32, types.int64, big_endian=True)
#: the same of an int64
load_be64 = _load(64, types.int64, big_endian=True)


def _store(bits: int) -> Any:
    @intrinsic
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.IntType(bits)
            swapped = builder.bswap(builder.trunc(args[1], kind) if bits < 64 else args[1])
            builder.store(swapped, builder.inttoptr(args[0], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.uintp, types.int64), codegen

    return store


#: ``store16(address, value)``: the low two bytes of int64 ``value``, big-endian; the address need not be aligned
store16 = _store(16)
#: the same of four bytes
store32 = _store(32)
#: the same of all eight bytes
store64 = _store(64)


@intrinsic
def _move(typing_context: Any, target: Any, source: Any, length: Any) -> Any:
    """``_move(target, source, length)``: ``memmove`` between addresses."""
    signature = types.void(types.uintp, types.uintp, types.uintp)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(address, pointer) for address in args[:2])
        cgutils.raw_memmove(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return signature, codegen


@inner
def copy_bytes(out, at, data, start, stop):
    """Copy ``data[start:stop]`` to ``out[at:]`` and return the position after it; both uint8 arrays.

    :raises IndexError: a range is out of bounds
    """
    size = stop - start
    if size < 0 or start < 0 or stop > len(data) or at < 0 or at + size > len(out):
        raise IndexError("bytes to copy are out of the array's bounds")
    _move(np.uintp(out.ctypes.data + at), np.uintp(data.ctypes.data + start), np.uintp(size))
    return at + size


if config.DISABLE_JIT:
    # replacements of the intrinsics when kernels run as plain Python: the same functions, called through ctypes

    def crc32c(address: Any, length: Any) -> np.uint32:  # noqa: F811
        """CRC-32C of the bytes at ``address``."""
        return np.uint32(google_crc32c.value(ctypes.string_at(int(address), int(length))))

    def prefetch(address: Any) -> None:  # noqa: F811
        """Nothing."""

    def _loading(size: int, kind: Any, *, big_endian: bool = False) -> Any:
        def load(address: Any) -> Any:
            raw = ctypes.string_at(int(address), size)
            return kind(int.from_bytes(raw, "big" if big_endian else "little", signed=kind is np.int64))

        return load

    load8, load32, load64 = _loading(1, np.uint8), _loading(4, np.uint64), _loading(8, np.uint64)
    load_be16, load_be32, load_be64 = (_loading(size, np.int64, big_endian=True) for size in (2, 4, 8))

    def _storing(size: int) -> Any:
        def store(address: Any, value: Any) -> None:
            low = int(value) & ((1 << 8 * size) - 1)
            ctypes.memmove(int(address), low.to_bytes(size, "big"), size)

        return store

    store16, store32, store64 = _storing(2), _storing(4), _storing(8)

    def _move(target: Any, source: Any, length: Any) -> None:  # noqa: F811
        ctypes.memmove(int(target), int(source), int(length))
