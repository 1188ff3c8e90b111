"""The console command, also as ``python -m compaction``."""

from __future__ import annotations

import sys

from compaction.cli.console import main

if __name__ == "__main__":
    sys.exit(main())
