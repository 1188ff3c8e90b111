"""The console command, also as ``python -m compaction``. Its applications are in ``jobs``, in a wheel in ``compaction.jobs``:
an installation takes no other name than this package's.

Tested by ``tests/test_frame.py`` and ``tests/test_wheel.py``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec


def main() -> int:
    """Runs the command that the arguments of the process select; returns its exit code."""
    installed = f"{__package__}.jobs"
    jobs = installed if find_spec(installed) else "jobs"
    code: int = import_module(f"{jobs}.__main__").main()
    return code


if __name__ == "__main__":
    sys.exit(main())
