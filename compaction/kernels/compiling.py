"""Decorators that compile kernels, and the CPU instructions and C functions that kernels call.

``kernel`` is for functions that Python calls, ``inner`` for functions that kernels call. Both are numba's ``njit``. The code of
a kernel includes the functions that it calls, so only kernels are cached on disk (see ``cache``). An inner function is compiled
once per list of argument types, whatever constants it is called with.

The instructions and C functions are CRC-32C, prefetch, pread, copies and loads of bytes and words, and loads and stores of
big-endian integers. Kernels pass addresses (``array.ctypes.data + position``), which need not be aligned, and are responsible
for their bounds.
Interpreted kernels call the same functions in plain Python.

numba, which takes half a second to import, is imported with the first call of a kernel: commands without work do not need it.
"""

from __future__ import annotations

import ctypes.util
import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import numpy as np

from compaction import signals

_LOGGER = logging.getLogger(__name__)
#: whether kernels run as plain Python, for tests and debuggers: numba's own switch
INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
#: held while a kernel's compiler is set up: threads that call a kernel at once share one
_SETUP = threading.Lock()


def kernel(function: Callable[..., Any]) -> Any:
    """Compile ``function`` on its first call, to run without the GIL, and cache it on disk."""
    return function if INTERPRETED else _Kernel(function)


def inner(function: Callable[..., Any]) -> Any:
    """Compile ``function`` as a part of each kernel that calls it."""
    return function if INTERPRETED else _Inner(function)


class _Kernel:
    """A compiled function that Python calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__
        self._compiled: Any = None

    def __call__(self, *args: Any) -> Any:
        return (self._compiled or self._set_up())(*args)

    def _set_up(self) -> Any:
        # an interrupt arrives once numba is imported: imports lose exceptions where a library ignores any
        with _SETUP, signals.deferred():
            from compaction.kernels.cache import use_cache

            if self._compiled is None:
                # a kernel from the cache needs the library, too
                load_crc32c()
                _load_extensions()
                self._compiled = use_cache(_njit(self._function, nogil=True, no_cfunc_wrapper=True))
        return self._compiled


def _load_extensions() -> None:
    """Load numba's extensions of installed packages, as numba would before its first compilation.

    Kernels need none of them: one that fails, and malformed entry points of any package, are a warning.
    """
    from numba.core.entrypoints import init_all

    try:
        init_all()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        _LOGGER.warning("extensions of numba are not loaded: %s: %s", type(error).__name__, error)


class _Inner:
    """A compiled function without wrappers for Python, which take as long to compile as a small function itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any) -> Any:
        """Call a copy that is compiled with wrappers; only tests do."""
        return self._callable(*args)

    @cached_property
    def _callable(self) -> Any:
        from numba import njit

        return njit(self._function)

    @cached_property
    def _part(self) -> Any:
        return _njit(self._function, no_cpython_wrapper=True, no_cfunc_wrapper=True)

    @cached_property
    def _numba_type_(self) -> Any:
        """numba's type of this object; it only has a weak reference to the dispatcher."""
        from numba import types

        return types.Dispatcher(self._part)


def _njit(function: Callable[..., Any], **options: bool) -> Any:
    from numba import njit, types
    from numba.core.options import DefaultOptions

    # Kernels allocate no arrays, and callers keep the arguments alive, so reference counting is not needed; compiling it takes
    # a tenth of the time. The option is not part of numba's public interface.
    uncounted = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
    compiled = njit(**uncounted, **options)(function)
    template = compiled.get_call_template

    def by_type(args: Sequence[Any], kws: Any) -> Any:
        # without ``unliteral``, the function would be compiled again for each constant argument
        return template(tuple(map(types.unliteral, args)), kws)

    compiled.get_call_template = by_type
    return compiled


class _Native:
    """Stands for an instruction or C function in compiled kernels. Python cannot call it.

    :param define: returns numba's counterpart, on first use
    """

    def __init__(self, define: Callable[[], Any]) -> None:
        self._define = define

    @cached_property
    def _numba_type_(self) -> Any:
        from numba.core.registry import cpu_target

        counterpart = self._define()
        # registers it
        cpu_target.typing_context.refresh()
        return cpu_target.typing_context.resolve_value_type(counterpart)


def _c_function(name: str, result: str, *arguments: str) -> Callable[[Callable[..., Any]], Any]:
    """Replace a function by the C function ``name`` with numba's types ``result`` and ``arguments``."""

    def define() -> Any:
        from numba import types

        return types.ExternalFunction(name, getattr(types, result)(*(getattr(types, kind) for kind in arguments)))

    return lambda function: function if INTERPRETED else _Native(define)


def _instruction(code: Callable[..., Any], result: str, *arguments: str) -> Callable[[Callable[..., Any]], Any]:
    """Replace a function by the instructions that ``code`` adds by an LLVM builder: ``code(builder, llvmlite.ir, *values)``
    returns the result, ``None`` for ``void``."""

    def define() -> Any:
        from llvmlite import ir
        from numba import types
        from numba.extending import intrinsic

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value = code(builder, ir, *values)
            return context.get_dummy_value() if value is None else value

        def typed(typing_context: Any, *kinds: Any) -> Any:
            return getattr(types, result)(*(getattr(types, kind) for kind in arguments)), codegen

        names = ("typing_context", *(f"argument{i}" for i in range(len(arguments))))
        # numba needs the number of arguments
        typed.__signature__ = Signature([Parameter(name, Parameter.POSITIONAL_ONLY) for name in names])  # type: ignore[attr-defined]
        return intrinsic(typed)

    return lambda function: function if INTERPRETED else _Native(define)


@_c_function("pread", "int64", "int32", "uintp", "uint64", "int64")
def pread(descriptor: Any, address: Any, size: Any, position: Any) -> int:
    """Read at most ``size`` bytes at ``position`` of a file to ``address``. Returns their number, -1 after an error."""
    try:
        data = os.pread(int(descriptor), int(size), int(position))
    except OSError:
        return -1
    ctypes.memmove(int(address), data, len(data))
    return len(data)


@cache
def load_crc32c() -> None:
    """Load the native library of ``google-crc32c``, by whose symbol LLVM links kernels: so they can be cached on disk. It is
    shipped beside the wheel; else the system's is loaded."""
    import llvmlite.binding

    package = Path(google_crc32c.__file__).parent
    directories = (package.parent / "google_crc32c.libs", package / ".dylibs", package / "lib")
    files = [path for directory in directories if directory.is_dir() for path in sorted(directory.iterdir())]
    libraries = [path for path in files if "crc32c" in path.name]
    library = str(libraries[0]) if libraries else ctypes.util.find_library("crc32c")
    if library is None:
        raise ImportError("google-crc32c has no native library on this platform; install a wheel of it or libcrc32c")
    llvmlite.binding.load_library_permanently(library)


@_c_function("crc32c_value", "uint32", "uintp", "uintp")
def crc32c(address: Any, length: Any) -> np.uint32:
    """CRC-32C of the bytes at ``address``, by the CPU's instruction if it has one."""
    return np.uint32(google_crc32c.value(ctypes.string_at(int(address), int(length))))


def _prefetch_code(builder: Any, ir: Any, address: Any) -> None:
    from numba.core import cgutils

    half = ir.IntType(32)
    pointer = builder.inttoptr(address, ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, half, half, half])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [pointer, ir.Constant(half, 1), ir.Constant(half, 3), ir.Constant(half, 1)])


@_instruction(_prefetch_code, "void", "uintp")
def prefetch(address: Any) -> None:
    """Load the cache line at ``address`` for reading and writing; never faults."""


def _load(bits: int, result: str, order: Literal["little", "big"] = "little") -> Any:
    """A function that loads the integer of ``bits`` at an address, as numpy's and numba's type ``result``."""
    signed = not result.startswith("u")

    def code(builder: Any, ir: Any, address: Any) -> Any:
        word = builder.load(builder.inttoptr(address, ir.IntType(bits).as_pointer()), align=1)
        word = builder.bswap(word) if order == "big" else word
        kind = ir.IntType(np.dtype(result).itemsize * 8)
        return word if word.type == kind else (builder.sext if signed else builder.zext)(word, kind)

    @_instruction(code, result, "uintp")
    def load(address: Any) -> Any:
        return np.dtype(result).type(int.from_bytes(ctypes.string_at(int(address), bits // 8), order, signed=signed))

    return load


load8 = _load(8, "uint8")
load32 = _load(32, "uint64")
load64 = _load(64, "uint64")
load_be16 = _load(16, "int64", "big")
load_be32 = _load(32, "int64", "big")
load_be64 = _load(64, "int64", "big")


def _store(bits: int) -> Any:
    """A function that stores the low ``bits`` of an int64 at an address, big-endian."""

    def code(builder: Any, ir: Any, address: Any, value: Any) -> None:
        kind = ir.IntType(bits)
        swapped = builder.bswap(builder.trunc(value, kind) if bits < 64 else value)
        builder.store(swapped, builder.inttoptr(address, kind.as_pointer()), align=1)

    @_instruction(code, "void", "uintp", "int64")
    def store(address: Any, value: Any) -> None:
        low = int(value) & ((1 << bits) - 1)
        ctypes.memmove(int(address), low.to_bytes(bits // 8, "big"), bits // 8)

    return store


store16 = _store(16)
store32 = _store(32)
store64 = _store(64)


def _move_code(builder: Any, ir: Any, target: Any, source: Any, length: Any) -> None:
    from numba.core import cgutils

    pointer = ir.IntType(8).as_pointer()
    cgutils.raw_memmove(builder, builder.inttoptr(target, pointer), builder.inttoptr(source, pointer), length, 1)


@_instruction(_move_code, "void", "uintp", "uintp", "uintp")
def _move(target: Any, source: Any, length: Any) -> None:
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
    _move(np.uintp(out.ctypes.data + pos), np.uintp(data.ctypes.data + start), np.uintp(size))
    return pos + size
