"""An interrupt while LLVM has a kernel translated or loaded: Python would drop its exception, and the process would crash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: calls a kernel, is interrupted as LLVM asks for code that was compiled before, and calls it again
PROBE = """
import signal
import numpy as np
from numba.core.codegen import CPUCodeLibrary
from compaction.kernels import slot_table
table = slot_table.SlotTable(slot_table.OFFSETS, 0, 1.0, 0)
empty = np.zeros((0, slot_table.ENTRY_WORDS), np.uint64)
hook, asked = CPUCodeLibrary._object_getbuffer_hook.__func__, []
def interrupted(library, module):
    asked.append(module)
    if len(asked) == 1:
        signal.raise_signal(signal.SIGINT)
    return hook(library, module)
CPUCodeLibrary._object_getbuffer_hook = classmethod(interrupted)
try:
    table.put(empty)
except KeyboardInterrupt:
    print("interrupted")
table.put(empty)
print("called")
"""


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_it_arrives_once_the_kernel_is_whole(cache: str, tmp_path: Path) -> None:
    place = {"NUMBA_CACHE_DIR": str(tmp_path)} if cache == "cold" else {}
    usual = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    command, environment = [sys.executable, "-c", PROBE], {**usual, "PYTHONPATH": str(ROOT), **place}
    if cache == "warm":
        subprocess.run(command, env=environment, capture_output=True, check=True)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["interrupted", "called"], "")
