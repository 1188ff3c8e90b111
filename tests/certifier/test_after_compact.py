"""Which logs ``compact --verify`` verifies."""

from __future__ import annotations

import pytest

from compaction.certifier.find_pairs import requests
from compaction.config.request import CompactionRequest
from tests.screen.made_reports import AS_OF_MS, every_outcome

CHANGED = {"orders-3", "a-topic-with-a-name-that-is-longer-than-most-terminals-have-room-for-12", "sessions-0", "clicks-0"}


@pytest.mark.parametrize("output_dir", [None, "/copy"])
def test_a_copy_is_verified_completely_and_in_place_what_was_changed(output_dir: str | None) -> None:
    request = CompactionRequest(("/data", "/other"), (), as_of_ms=AS_OF_MS, output_dir=output_dir)
    (verification,) = requests(request, every_outcome())
    others = {"never-written-0", "sales-0", "prices-1"} if output_dir else set()
    assert set(map(str, verification.logs or ())) == CHANGED | others
    assert bool(verification.before) is bool(output_dir)
