"""``warm-up``: compiles all kernels in advance, once per version of this package (``compaction.kernels.cache``)."""

from __future__ import annotations

import argparse
from functools import partial

from compaction.cli import execution
from compaction.errors import CompactionError
from compaction.options.option import CommandOptions
from compaction.options.table import MESSAGES, STATUS, NoOptions
from compaction.screen.text_table import wrapped

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

#: the part of the cache that runs use
KERNELS = "kernels"
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


def status() -> tuple[str, bool]:
    """What the cache has for later runs, and whether that is all of it."""
    from compaction.kernels.cache import are_all_compiled, cache_dir, fingerprint

    place = cache_dir()
    if place is None:
        return _NO_DIRECTORY, False
    kernels, complete = place / fingerprint(), are_all_compiled()
    megabytes = sum(file.stat().st_size for file in kernels.glob("*") if file.is_file()) / 1e6
    state = "all compiled" if complete else "those that runs have called so far"
    return f"{kernels}: {megabytes:.1f} MB; {state}", complete


def _body(arguments: argparse.Namespace) -> int:
    if not arguments.status:
        warm_up()
    (found, complete), screen = status(), execution.screen(arguments)
    screen.print(wrapped(f"{KERNELS}: {found}", screen.style, hanging=4))
    return 0 if complete else execution.FAILED


main = partial(execution.run_command, OPTIONS, _body)
