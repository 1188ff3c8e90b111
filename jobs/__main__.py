"""``python -m jobs COMMAND`` runs ``kafka-log-compaction COMMAND``."""

import sys

from compaction.cli.console import main

sys.exit(main())
