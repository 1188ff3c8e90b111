"""Calls of the Python API from several threads at once, of random logs: each gives what it gives alone."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import compaction
from tests.passes.random_cases import FLAVOURS, NOW_MS, contents, lay_out, random_case

_SETTINGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "file.delete.delay.ms": 0}
_THREADS = 4
#: of calls, one that runs its tasks in worker processes
_IN_WORKERS = 0.1


def _compact(log_dir: Path) -> object:
    report = compaction.compact(log_dir, settings=_SETTINGS, as_of=NOW_MS)
    return [(log.name, log.status, log.reason.replace(str(log_dir), "")) for log in report.logs], contents(log_dir)


def _count(log_dir: Path) -> object:
    return _topics(compaction.count(log_dir, top=3), log_dir)


def _count_bytes(log_dir: Path) -> object:
    return _topics(compaction.count(log_dir, stored=True, as_of=NOW_MS), log_dir)


def _topics(report: compaction.CountReport, log_dir: Path) -> str:
    return json.dumps(report.to_dict()["topics"]).replace(str(log_dir), "")


CALLS: tuple[Callable[[Path], object], ...] = (_compact, _compact, _count, _count_bytes)


def differences(root: Path, seed: int) -> list[str]:
    """The calls of a seed that give other results in threads than alone."""
    chance = random.Random(seed)
    calls = []
    for number in range(_THREADS):
        lay_out(root / f"logs-{number}", [random_case(chance.choice(list(FLAVOURS)), chance.randrange(10**6))])
        calls += [(chance.choice(CALLS), number) for _ in range(3)]
    alone = [_result(call, root / f"logs-{number}", root / f"alone-{at}") for at, (call, number) in enumerate(calls)]
    inline = 0 if chance.random() < _IN_WORKERS else 1 << 40
    with mock.patch("compaction.engines.local.INLINE_BYTES", inline), ThreadPoolExecutor(_THREADS) as pool:
        running = [
            pool.submit(_result, call, root / f"logs-{number}", root / f"thread-{at}")
            for at, (call, number) in enumerate(calls)
        ]
    found = [future.exception() or future.result() for future in running]
    return [f"{call.__name__} of logs-{number}: {_first(theirs)}, alone {_first(ours)}"
            for (call, number), ours, theirs in zip(calls, alone, found, strict=True) if ours != theirs]  # fmt: skip


def _first(result: object) -> str:
    return repr(result)[:300]


def _result(call: Callable[[Path], object], source: Path, copy: Path) -> object:
    return call(shutil.copytree(source, copy))
