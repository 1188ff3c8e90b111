"""Groups of kernels can be compiled in advance by name."""

from __future__ import annotations

import pytest

from compaction.startup import background, kernel_groups


@pytest.mark.parametrize("group", [*background.PASSES, *background.RARE])
def test_a_group_is_compiled_once_it_is_loaded(group: str) -> None:
    kernel_groups.load(group)
    assert kernel_groups.missing(group) == []
