"""What searches once found, replayed in memory. Random logs are in ``tests/scenarios/found.txt``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.damage.fuzz import bounds_checked
from tools.search.in_memory import CASES, replay

ROOT = Path(__file__).resolve().parents[2]
KNOWN = sorted(CASES.glob("*.json"))


@pytest.mark.parametrize("case", KNOWN, ids=[case.stem for case in KNOWN])
def test_a_case_that_a_search_once_found_has_no_fault_any_more(case: Path) -> None:
    if json.loads(case.read_text())["search"] == "damage":
        # some of these faults show only if the kernels check bounds
        command = [sys.executable, "-m", "tools.search", "--replay", str(case)]
        done = subprocess.run(command, cwd=ROOT, env=bounds_checked(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        assert replay(case) == []
