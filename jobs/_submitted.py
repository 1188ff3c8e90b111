"""Runs the command of the file ``started`` in this directory, from the checkout or installation that contains it."""

import sys
from importlib import import_module
from pathlib import Path

checkout = Path(__file__).resolve().parent.parent
if (checkout / "compaction").is_dir():
    # not in an installation, in which this directory is a part of the package
    sys.path.insert(0, str(checkout))
sys.argv[0] = globals()["started"]
sys.exit(import_module("compaction.cli.console").run_application(Path(sys.argv[0]).stem))
