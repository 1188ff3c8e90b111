"""The functions of ``native`` as numba compiles them into kernels; importing this module imports numba.

CRC-32C is that of the ``google-crc32c`` package. Its shared library is loaded into the process once, and LLVM resolves the name
when it links a kernel, so that compiled kernels can be cached on disk.
"""

from __future__ import annotations

import ctypes.util
from pathlib import Path
from typing import Any

import google_crc32c
import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic


def type_of(name: str) -> Any:
    """numba's type of one of these functions."""
    # registers the functions of this module
    cpu_target.typing_context.refresh()
    return cpu_target.typing_context.resolve_value_type(globals()[name])


def _crc32c_library() -> str:
    """The path of libcrc32c: shipped beside the ``google_crc32c`` wheel, else the system's."""
    package = Path(google_crc32c.__file__).parent
    directories = (package.parent / "google_crc32c.libs", package / ".dylibs", package / "lib")
    files = [path for directory in directories if directory.is_dir() for path in sorted(directory.iterdir())]
    libraries = [path for path in files if "crc32c" in path.name]
    library = str(libraries[0]) if libraries else ctypes.util.find_library("crc32c")
    if library is None:
        raise ImportError("google-crc32c has no native library on this platform; install a wheel of it or libcrc32c")
    return library


llvmlite.binding.load_library_permanently(_crc32c_library())


@intrinsic
def crc32c(typing_context: Any, address: Any, length: Any) -> Any:
    signature = types.uint32(types.uintp, types.uintp)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, half = ir.IntType(64), ir.IntType(32)
        kind = ir.FunctionType(half, [half, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "crc32c_extend")
        return builder.call(function, [ir.Constant(half, 0), *args])

    return signature, codegen


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
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


load8 = _load(8, types.uint8)
load32 = _load(32, types.uint64)
load64 = _load(64, types.uint64)
load_be16 = _load(16, types.int64, big_endian=True)
load_be32 = _load(32, types.int64, big_endian=True)
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


store16 = _store(16)
store32 = _store(32)
store64 = _store(64)


@intrinsic
def move(typing_context: Any, target: Any, source: Any, length: Any) -> Any:
    signature = types.void(types.uintp, types.uintp, types.uintp)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(address, pointer) for address in args[:2])
        cgutils.raw_memmove(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return signature, codegen


pread = types.ExternalFunction("pread", types.int64(types.int32, types.uintp, types.uint64, types.int64))
