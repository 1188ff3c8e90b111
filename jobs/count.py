"""``spark-submit jobs/count.py`` runs ``kafka-log-compaction count``."""

from pathlib import Path
from runpy import run_path

if __name__ == "__main__":
    run_path(str(Path(__file__).with_name("_submitted.py")), {"started": __file__})
