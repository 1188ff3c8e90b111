"""Caches compiled kernels on disk, so that each is compiled by one process only.

``place`` chooses the directory. numba executes the files that it loads, so files that other users own or may write to are
replaced, not read. Each version of the sources has its own subdirectory, because numba compares only the source file of a
kernel, not of the functions that it calls. While one process compiles a kernel, others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import pickle
import pkgutil
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import llvmlite.binding
import numba
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator

import compaction.kernels
from compaction import signals
from compaction.kernels.compiling import place
from compaction.kernels.compiling.ownership import is_private_file, why_not_private

_LOG = logging.getLogger(__name__)
#: number of versions of the sources whose kernels are retained
_VERSIONS = 8


@cache
def fingerprint() -> str:
    """Identifies the sources of all kernels, the compiler and its settings."""
    settings = (config.OPT, config.BOUNDSCHECK, config.DEBUGINFO_DEFAULT, config.CPU_NAME, config.CPU_FEATURES)
    digest = hashlib.sha256(repr((sys.version_info, numba.__version__, llvmlite.__version__, settings)).encode())
    # its constants are compiled into kernels
    digest.update(_source(find_spec("compaction.formats.record_batch")))
    for finder, name, _ in pkgutil.walk_packages(compaction.kernels.__path__, f"{compaction.kernels.__name__}."):
        spec = finder.find_spec(name, None)
        digest.update(name.encode() + _source(spec))
    return digest.hexdigest()[:16]


def _source(spec: ModuleSpec | None) -> bytes:
    source = spec.loader.get_source(spec.name) if spec and spec.loader and hasattr(spec.loader, "get_source") else None
    return (source or "").encode()


def cache_dir(home: Path | None = None) -> Path | None:
    """The cache directory, or ``None`` without a cache: see ``place``. If it has kernels of this version, it may be read-only.

    :param home: replaces the user's home directory
    """
    return place.cache_dir(fingerprint, home)


@cache
def process_cache_dir() -> Path | None:
    """``cache_dir`` of this process, determined once."""
    return cache_dir()


class _Locator(_CacheLocator):  # type: ignore[misc]
    """Tells numba the directory and the source version of a kernel."""

    def __init__(self, function: Callable[..., Any], path: Path) -> None:
        self._line = function.__code__.co_firstlineno
        # for numba's warnings
        self._py_file = function.__code__.co_filename
        self._path = path

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], _: str) -> _Locator | None:
        """The locator of a kernel, or ``None`` without a cache."""
        directory = process_cache_dir()
        return None if directory is None else cls(py_func, directory / fingerprint())

    def ensure_cache_path(self) -> None:
        """Create the directory, and remove those of other versions except for the most recent ones."""
        if self._path.is_dir():
            return
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        versions = [entry for entry in self._path.parent.iterdir() if re.fullmatch("[0-9a-f]{16}", entry.name)]
        for old in sorted(versions, key=lambda entry: entry.stat().st_mtime)[:-_VERSIONS]:
            shutil.rmtree(old, ignore_errors=True)

    def get_cache_path(self) -> str:
        return str(self._path)

    def get_source_stamp(self) -> str:
        return fingerprint()

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Impl(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator,)


class _OwnFiles(IndexDataCacheFile):  # type: ignore[misc]
    """numba's cache files of one kernel; ignores files that others could have written."""

    def _load_index(self) -> dict[Any, str]:
        overloads: dict[Any, str] = super()._load_index() if self._is_own(self._index_name) else {}
        return overloads

    def _load_data(self, name: str) -> Any:
        if not self._is_own(name):
            raise FileNotFoundError(name)
        return super()._load_data(name)

    def _is_own(self, name: str) -> bool:
        path = os.path.join(self._cache_path, name)  # noqa: PTH118
        if not os.path.lexists(path):
            return False
        reason = why_not_private(Path(self._cache_path)) or ("" if is_private_file(path) else f"{path} is not private")
        if reason:
            _LOG.info("%s: the kernel is not loaded but recompiled", reason)
        return not reason

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[BinaryIO]:
        """A new file that replaces ``filepath`` once it is written; private to this user, whatever the umask."""
        temporary = Path(f"{filepath}.tmp.{uuid4().hex[:16]}")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            try:
                yield file
                file.flush()
                temporary.replace(filepath)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise


class KernelCache(FunctionCache):  # type: ignore[misc]
    """The cache of one kernel. A process that finds it missing holds its lock until it has compiled the kernel."""

    _impl_class = _Impl

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        locator = self._impl.locator
        self._cache_file = _OwnFiles(self.cache_path, self._impl.filename_base, locator.get_source_stamp())
        self._lock: int | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel, or ``None``: the caller then compiles it and calls ``save_overload``."""
        overload = self._load(sig, target_context)
        if overload is None:
            self._acquire()
            overload = self._load(sig, target_context)
            if overload is not None:
                self._release()
        return overload

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save a compiled kernel. If that fails, only this process has it."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _LOG.info("%s: kernels are not cached: %s", self.cache_path, error.strerror)
        finally:
            self._release()

    def _load(self, sig: Any, target_context: Any) -> Any:
        try:
            # the exception of an interrupt would be lost within a call by LLVM, which then has no code to run
            with signals.deferred():
                # not ``load_overload``, which first defines all of numba's functions: only compiling needs them, for 0.3 s
                return super()._load_overload(sig, target_context)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            _LOG.info("%s: a kernel that cannot be read is recompiled: %s", self.cache_path, error)
            with suppress(OSError):
                self.flush()
            return None

    def _acquire(self) -> None:
        self._release()
        try:
            self._impl.locator.ensure_cache_path()
            path = Path(self.cache_path) / f"{self._impl.filename_base}.lock"
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            # without locks, a kernel may be compiled twice
            _LOG.info("%s: kernels are not locked: %s", self.cache_path, error.strerror)

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _marker() -> Path | None:
    directory = process_cache_dir()
    if directory is None or config.DISABLE_JIT:
        return None
    # machines with different CPUs may share the directory
    cpu = (llvmlite.binding.get_host_cpu_name(), llvmlite.binding.get_host_cpu_features().flatten())
    return directory / fingerprint() / f"all.{hashlib.sha256(repr(cpu).encode()).hexdigest()[:8]}.done"


def are_all_compiled() -> bool:
    """Whether any process on a machine with this CPU has noted that all kernels are cached; always true without a cache."""
    marker = _marker()
    return marker is None or marker.exists()


def note_all_compiled() -> None:
    marker = _marker()
    if marker is not None:
        try:
            marker.touch(mode=0o600)
        except OSError as error:
            _LOG.info("%s cannot be written: %s", marker, error.strerror)


def kernel_cache(function: Callable[..., Any]) -> KernelCache | None:
    """The cache of a kernel, or ``None`` without a cache."""
    return None if process_cache_dir() is None else KernelCache(function)
