"""The console command, also as ``python -m compaction``.

Tested by ``tests/test_frame.py`` and ``tests/test_wheel.py``.
"""

from __future__ import annotations

import sys

from compaction.cli.console import main

if __name__ == "__main__":
    sys.exit(main())
