"""Caches compiled kernels on disk, so that each is compiled by one process only; importing this module imports numba.

Files that are loaded are executed, so files that other users own or may write to are replaced, not read. The directory is the
first of these that is writable and private to the user (see ``ownership``):

1. ``$NUMBA_CACHE_DIR``; ``/dev/null`` disables the cache;
2. ``kafka-log-compaction/numba`` in the user's cache directory (``$XDG_CACHE_HOME`` or ``~/.cache``);
3. ``kafka-log-compaction-UID`` in the temporary directory.

The package's own directory is not used: it may be read-only, a zip, or shared by machines with different CPUs.

Each version of the sources, the compiler and the CPU has its own subdirectory: numba's own cache compares only the source file
of a kernel, not of the functions that it calls, has no locks, and its place is a setting of the process that also moves the
caches of a host's other functions. While one process compiles a kernel, others wait.
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
import tempfile
from contextlib import ExitStack
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import llvmlite.binding
import numba
from numba.core import config
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

import compaction.kernels
from compaction import signals
from compaction.kernels.ownership import is_private_file, make_private, why_not_private

CACHE_DIR = "NUMBA_CACHE_DIR"
#: value of ``CACHE_DIR`` that disables the cache
NO_CACHE = os.devnull
_LOG = logging.getLogger(__name__)
#: number of versions of the sources whose kernels are retained
_VERSIONS = 8
_DIGEST_BYTES = 32
#: the fingerprint covers the modules with this prefix
_PREFIX = f"{compaction.kernels.__name__}."


@cache
def fingerprint() -> str:
    """Identifies the sources of all kernels, the compiler, its settings and the CPU: machines may share the directory."""
    cpu = llvmlite.binding.get_process_triple(), llvmlite.binding.get_host_cpu_name()
    features = llvmlite.binding.get_host_cpu_features().flatten()
    settings = (config.OPT, config.BOUNDSCHECK, config.DEBUGINFO_DEFAULT, config.CPU_NAME, config.CPU_FEATURES)
    versions = sys.version_info, numba.__version__, llvmlite.__version__
    digest = hashlib.sha256(repr((versions, settings, cpu, features)).encode())
    # its constants are compiled into kernels
    digest.update(_source(find_spec("compaction.formats.record_batch")))
    for finder, name, _ in pkgutil.walk_packages(compaction.kernels.__path__, _PREFIX):
        spec = finder.find_spec(name, None)
        digest.update(name.encode() + _source(spec))
    return digest.hexdigest()[:16]


def _source(spec: ModuleSpec | None) -> bytes:
    source = spec.loader.get_source(spec.name) if spec and spec.loader and hasattr(spec.loader, "get_source") else None
    return (source or "").encode()


@cache
def cache_dir() -> Path | None:
    """The cache directory of this process, or ``None`` without a cache. If it has kernels of this version, it may be read-only.
    Logs a warning if it is not the first choice: on first use if that one is not writable, in every run if others may write to
    it."""
    if os.environ.get(CACHE_DIR) == NO_CACHE:
        return None
    preferred = _preferred()
    reason, foreign = ("no home directory", False) if preferred is None else _refusal(preferred)
    if not reason:
        return preferred
    temporary, existed = _temporary()
    if foreign or not existed:
        hint = f"set {CACHE_DIR} to a directory that is yours and that nobody else may write to"
        _LOG.warning("%s: compiled kernels are kept in %s; %s", reason, temporary or "memory, for this run", hint)
    return temporary


def _preferred() -> Path | None:
    if chosen := os.environ.get(CACHE_DIR):
        return Path(chosen)
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
        except RuntimeError:
            # the user has no passwd entry, as in containers
            return None
    return base / "kafka-log-compaction" / "numba"


def _refusal(directory: Path) -> tuple[str, bool]:
    """The reason that a directory, which is created if missing, cannot be the cache, and whether it is not private."""
    existing = directory / fingerprint()
    try:
        if os.path.lexists(existing):
            reason = why_not_private(existing if existing.is_dir() else directory)
        else:
            reason = make_private(directory)
    except OSError as error:
        return f"{directory} cannot be written ({error.strerror})", False
    return reason, bool(reason)


def _temporary() -> tuple[Path | None, bool]:
    """This user's temporary directory for kernels, and whether it existed before."""
    temporary = Path(tempfile.gettempdir()) / f"kafka-log-compaction-{os.geteuid()}"
    existed = os.path.lexists(temporary)
    # anyone can create a link here
    if temporary.is_symlink() or _refusal(temporary)[0]:
        return None, False
    return temporary, existed


class KernelCache:
    """The cache of one kernel, which numba's dispatcher calls: a file for each signature, with the code that numba serialises,
    after a digest."""

    def __init__(self, compiled: Any, directory: Path) -> None:
        name = f"{compiled.__module__.rpartition('.')[2]}.{compiled.__qualname__}"
        self.cache_path = str(directory)
        self._base, self._compile = directory / name, compiled.compile

    def compile(self, sig: Any) -> Any:
        """Compile or load the kernel for the types of its arguments; replaces the method of its dispatcher.

        If the kernel is missing, its lock is held meanwhile. Without locks, it may be compiled twice.
        """
        with ExitStack() as stack:
            if not self._path(sig).exists():
                try:
                    _make_version_dir(self._base.parent)
                    lock = os.open(f"{self._base}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                    stack.callback(os.close, lock)
                    fcntl.flock(lock, fcntl.LOCK_EX)
                except OSError as error:
                    _LOG.info("%s: kernels are not locked: %s", self.cache_path, error.strerror)
            # the exception of an interrupt would be lost within a call by LLVM, which then has no code to run
            stack.enter_context(signals.deferred())
            return self._compile(sig)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel, or ``None``: numba then compiles it and calls ``save_overload``."""
        path = self._path(sig)
        try:
            data = path.read_bytes() if self._is_own(path) else b""
        except OSError as error:
            _LOG.info("%s: a kernel that cannot be read is recompiled: %s", path, error.strerror)
            return None
        if not data or _with_digest(data[_DIGEST_BYTES:]) != data:
            return None
        content = pickle.loads(data[_DIGEST_BYTES:])  # noqa: S301 - only this user can have written it
        # numba's functions are not defined first, as its own cache does: only compiling needs them, for 0.3 s
        return CompileResult._rebuild(target_context, *content)

    def save_overload(self, sig: Any, compiled: Any) -> None:
        """Save a compiled kernel. If that fails, only this process has it."""
        if compiled.library.has_dynamic_globals:
            # its code has addresses of this process
            return
        path = self._path(sig)
        temporary = Path(f"{path}.tmp.{uuid4().hex[:16]}")
        try:
            _make_version_dir(path.parent)
            # private to this user, whatever the umask
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_with_digest(dumps(compiled._reduce())))
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            _LOG.info("%s: kernels are not cached: %s", self.cache_path, error.strerror)

    def _path(self, sig: Any) -> Path:
        return Path(f"{self._base}.{hashlib.sha256(repr(sig).encode()).hexdigest()[:16]}.kernel")

    def _is_own(self, path: Path) -> bool:
        """Whether there is such a file, and nobody else can have written it."""
        if not os.path.lexists(path):
            return False
        reason = why_not_private(path.parent) or ("" if is_private_file(path) else f"{path} is not private")
        if reason:
            _LOG.info("%s: the kernel is not loaded but recompiled", reason)
        return not reason


def _with_digest(content: bytes) -> bytes:
    """``content`` after its digest, by which a damaged file is recognised."""
    return hashlib.sha256(content).digest() + content


def _make_version_dir(path: Path) -> None:
    """Create the directory of this version's kernels, and remove those of other versions except for the most recent ones."""
    if path.is_dir():
        return
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    versions = [entry for entry in path.parent.iterdir() if re.fullmatch("[0-9a-f]{16}", entry.name)]
    for old in sorted(versions, key=lambda entry: entry.stat().st_mtime)[:-_VERSIONS]:
        shutil.rmtree(old, ignore_errors=True)


def use_cache(compiled: Any) -> Any:
    """``compiled``, a kernel's dispatcher, which now loads its code from the cache, and saves it there, if there is a cache."""
    directory = cache_dir() if compiled.__module__.startswith(_PREFIX) else None
    if directory is None:
        compiled.compile = signals.deferred()(compiled.compile)
    else:
        cache = KernelCache(compiled, directory / fingerprint())
        compiled._cache, compiled.compile = cache, cache.compile
    return compiled


def _marker() -> Path | None:
    directory = cache_dir()
    if directory is None or config.DISABLE_JIT:
        return None
    return directory / fingerprint() / "all.done"


def are_all_compiled() -> bool:
    """Whether any process has noted that all kernels are cached; always true without a cache."""
    marker = _marker()
    return marker is None or marker.exists()


def note_all_compiled() -> None:
    marker = _marker()
    if marker is not None:
        try:
            marker.touch(mode=0o600)
        except OSError as error:
            _LOG.info("%s cannot be written: %s", marker, error.strerror)
