"""Decorators that compile kernels: ``kernel`` for functions that Python calls, ``inner`` for functions that kernels call.

Both are numba's ``njit``. The code of a kernel includes the functions that it calls, so only kernels are cached on disk (see
``cache``). An inner function is compiled once per list of argument types, whatever constants it is called with.

numba, which takes half a second to import, is imported with the first call of a kernel: commands without work do not need it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

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
        """Call the compiled function."""
        return (self._compiled or self._set_up())(*args)

    def _set_up(self) -> Any:
        # an interrupt arrives once numba is imported: imports lose exceptions where a library ignores any
        with _SETUP, signals.deferred():
            # a kernel from the cache needs the library that ``intrinsics`` loads, too
            from compaction.kernels.compiling import intrinsics  # noqa: F401
            from compaction.kernels.compiling.cache import use_cache

            if self._compiled is None:
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
