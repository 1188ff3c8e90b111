"""``python -m jobs COMMAND`` runs ``kafka-log-compaction COMMAND``.

Tested by ``tests/test_frame.py``.
"""

import sys

from compaction.cli.console import main

sys.exit(main())
