"""``warm-up``: compiles all kernels in advance, once per version of this package (``compaction.kernels.cache``)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from compaction.cli import execution
from compaction.errors import CompactionError
from compaction.options.option import CommandOptions
from compaction.options.table import MESSAGES, STATUS, NoOptions
from compaction.screen.text_table import Screen, wrapped

_DESCRIPTION = """\
Compile all kernels of this package and cache them, for example when an image is built. This takes
less than a minute, once per version of this package. Otherwise runs compile kernels on first use.

The cache belongs to the user, and is not read if other users can write to it.
"""

_EPILOG = """\
exit status:
  0  done; with --status: all kernels are cached
  1  kernels cannot be cached; with --status: some are missing
  2  usage error

environment:
  NUMBA_CACHE_DIR  the directory, by default in the user's cache directory; /dev/null: no cache
"""

_NO_DIRECTORY = "no directory of this user is protected from other writers: set NUMBA_CACHE_DIR to one"


OPTIONS = CommandOptions("warm-up", NoOptions, STATUS, MESSAGES, description=_DESCRIPTION, epilog=_EPILOG)


def warm_up() -> None:
    """Compiles the kernels that are not cached.

    :raises CompactionError: there is no directory for the cache
    """
    from compaction.kernels import all_kernels
    from compaction.kernels.cache import are_all_compiled, cache_dir

    if cache_dir() is None:
        raise CompactionError(_NO_DIRECTORY)
    if not are_all_compiled():
        all_kernels.compile_all()


class Part(NamedTuple):
    """One part of the cache, and whether it is complete."""

    name: str
    found: str
    usable: bool = True


def status() -> list[Part]:
    """The parts of the cache for later runs."""
    from compaction.kernels.cache import are_all_compiled, cache_dir, fingerprint

    place = cache_dir()
    if place is None:
        return [Part("kernels", _NO_DIRECTORY, False)]
    kernels, complete = place / fingerprint(), are_all_compiled()
    state = "all compiled" if complete else "those that runs have called so far"
    return [Part("kernels", f"{kernels}: {_size(kernels)}; {state}", complete)]


def show_status(screen: Screen) -> int:
    """Prints each part; returns the exit code."""
    parts = status()
    for part in parts:
        screen.print(wrapped(f"{part.name}: {part.found}", screen.style, hanging=4))
    return 0 if all(part.usable for part in parts) else execution.FAILED


def _size(path: Path) -> str:
    return f"{sum(file.stat().st_size for file in path.glob('*') if file.is_file()) / 1e6:.1f} MB"


def _body(arguments: argparse.Namespace) -> int:
    if not arguments.status:
        warm_up()
    return show_status(execution.screen(arguments))


main = execution.main_of(OPTIONS, _body)
