"""The log of ``docs/over-time.md``: ``python -m tests.policies.customers DIR`` writes changes of customers over 60 days.

Some customers change much more often than others, and a few are deleted.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.kafka.encode import Batch, Record

DAY_MS = 86_400_000
FIRST_MS = 20_000 * DAY_MS
_DAYS, _BATCHES, _RECORDS, _PARTITIONS = 60, 900, 5, 2


def write(log_dir: Path) -> None:
    """Two partitions ``customers``."""
    for partition in range(_PARTITIONS):
        chance, path = random.Random(partition), log_dir / f"customers-{partition}"
        path.mkdir(parents=True)
        with (path / f"{0:020d}.log").open("wb") as file:
            for number in range(_DAYS * _BATCHES):
                at_ms, offset = FIRST_MS + number * DAY_MS // _BATCHES, number * _RECORDS
                file.write(Batch([_record(chance, offset + each, at_ms) for each in range(_RECORDS)]).encode())


def _record(chance: random.Random, offset: int, at_ms: int) -> Record:
    key = b"customer-%d" % int(chance.paretovariate(0.6) * 10 % 20_000)
    value = None if chance.random() < 0.03 else bytes(chance.choices(b"abcdefghijklmnop", k=220))
    return Record(offset, at_ms, key, value)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
