"""Objects that exist at the first task of a worker are not collected again."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from compaction import engine as module


@pytest.fixture(autouse=True)
def _worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module._Worker, "frozen", False)
    yield
    gc.unfreeze()


def test_only_the_first_call_freezes() -> None:
    before = gc.get_freeze_count()
    module.freeze_gc()
    frozen = gc.get_freeze_count()
    assert frozen > before
    later = [[object()] for _ in range(1_000)]
    module.freeze_gc()
    assert gc.get_freeze_count() < frozen + len(later)
