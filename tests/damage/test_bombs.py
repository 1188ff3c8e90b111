"""Small files that expand to fill memory, or take very long: refused with file and position, within bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.damage.bombs import BOMBS
from tests.side_by_side import started

ROOT = Path(__file__).resolve().parents[2]
#: the README's bound on the memory that one batch can make a task use
MAX_MIB = 1024
MAX_SECONDS = 60

_TOO_MUCH_V2 = "at byte 0: batch decompresses to more than 268435456 bytes"
_TOO_MUCH_OLD = "gives more than 268435456"
REASONS = {
    "records that are not there": "at byte 0: batch declares 2147483647 records in 7 bytes",
    "records that are not there, plain": "at byte 0: batch has an impossible record count",
    "too many records": "at byte 0: batch of 4200000 records, more than 4194304 are not supported",
    "too many old messages": "at byte 0: wrapper of more than 1048576 messages",
    "a compressed control batch": "at byte 0: control batch has no readable control record",
    **{
        f"a wrapper in a wrapper of {codec}": "at byte 0: compressed message inside a wrapper"
        for codec in ("gzip", "snappy", "lz4")
    },
    "empty gzip members": "at byte 0: batch ends before its declared number of records",
    "likely headers": "at byte 0: batch runs into the batches after it",
}


#: one of each kind: the others have another codec, or take long
_SAMPLE = {
    "zeros in zstd", "a wrapper in a wrapper of gzip", "records that are not there",
}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """The bombs of the tests that were chosen, each in its own process, of which several run at a time."""
    tests = (item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path)
    chosen = [str(test.callspec.params["name"]) for test in tests]
    with started(_cleaned, chosen) as found:
        yield found


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each not in _SAMPLE)) for each in sorted(BOMBS)]
)
def test_a_bomb_fails_its_log_within_bounds(outcomes: dict[str, Future[dict[str, Any]]], name: str) -> None:
    found = outcomes[name].result()
    status, reason = found["closed"]
    assert status == "failed"
    assert REASONS.get(name, _TOO_MUCH_V2 if "magic" not in name else _TOO_MUCH_OLD) in reason
    assert found["dry"] == reason
    assert found["active"][0] in ("failed", "cleaned")
    if name.startswith("zeros"):
        assert "more than 268435456" in found["dump"]
        assert "more than 268435456" in found["source"]
        # messages of magic 0 have no timestamp
        assert "more than 268435456" in found["lookup"] or "magic 0" in name
    elif name.startswith("a wrapper in"):
        assert all("inside a" in found[reader] for reader in ("dump", "lookup", "source"))
    assert found["mib"] < MAX_MIB
    assert found["seconds"] < MAX_SECONDS


def _cleaned(name: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.damage.bombs", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
