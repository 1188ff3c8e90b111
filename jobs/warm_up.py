"""``spark-submit jobs/warm_up.py`` runs ``kafka-log-compaction warm-up``."""

from pathlib import Path
from runpy import run_path

if __name__ == "__main__":
    run_path(str(Path(__file__).with_name("_submitted.py")), {"started": __file__})
