"""Chooses the directory of compiled kernels.

It is the first of these directories that is writable and private to the user (see ``ownership``), because its code is executed:

1. ``$NUMBA_CACHE_DIR``; ``/dev/null`` disables the cache;
2. ``kafka-log-compaction/numba`` in the user's cache directory (``$XDG_CACHE_HOME`` or ``~/.cache``);
3. ``kafka-log-compaction-UID`` in the temporary directory.

The package's own directory is not used: it may be read-only, a zip, or shared by machines with different CPUs.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from compaction.kernels.compiling.ownership import make_private, why_not_private

CACHE_DIR = "NUMBA_CACHE_DIR"
#: value of ``CACHE_DIR`` that disables the cache
NO_CACHE = os.devnull
_LOG = logging.getLogger(__name__)


def cache_dir(entry: Callable[[], str], home: Path | None = None) -> Path | None:
    """The cache directory, or ``None`` without a cache. Logs a warning if it is not the first choice: on first use if that one
    is not writable, in every run if others may write to it.

    :param entry: returns the name of an entry; a directory that has it may be read-only
    :param home: replaces the user's home directory
    """
    if os.environ.get(CACHE_DIR) == NO_CACHE:
        return None
    preferred = _preferred(home)
    reason, foreign = ("no home directory", False) if preferred is None else _refusal(preferred, entry())
    if not reason:
        return preferred
    temporary, existed = _temporary(entry())
    if foreign or not existed:
        hint = f"set {CACHE_DIR} to a directory that is yours and that nobody else may write to"
        _warn(f"{reason}: compiled kernels are kept in {temporary or 'memory, for this run'}; {hint}")
    return temporary


@cache
def _warn(text: str) -> None:
    _LOG.warning("%s", text)


def _preferred(home: Path | None) -> Path | None:
    chosen = os.environ.get(CACHE_DIR)
    if chosen:
        return Path(chosen)
    base = _user_cache_dir(home)
    return base and base / "kafka-log-compaction" / "numba"


def _user_cache_dir(home: Path | None) -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME", "")
    if home is None and Path(base).is_absolute():
        return Path(base)
    try:
        home = home or Path.home()
    except RuntimeError:
        # the user has no passwd entry, as in containers
        return None
    return home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"


def _refusal(directory: Path, entry: str) -> tuple[str, bool]:
    """The reason that a directory, which is created if missing, cannot be the cache, and whether it is not private."""
    existing = directory / entry
    try:
        if os.path.lexists(existing):
            reason = why_not_private(existing if existing.is_dir() else directory)
        else:
            reason = make_private(directory)
    except OSError as error:
        return f"{directory} cannot be written ({error.strerror})", False
    return reason, bool(reason)


def _temporary(entry: str) -> tuple[Path | None, bool]:
    """This user's temporary directory for kernels, and whether it existed before."""
    temporary = Path(tempfile.gettempdir()) / f"kafka-log-compaction-{os.geteuid()}"
    existed = os.path.lexists(temporary)
    # anyone can create a link here
    if temporary.is_symlink() or _refusal(temporary, entry)[0]:
        return None, False
    return temporary, existed
