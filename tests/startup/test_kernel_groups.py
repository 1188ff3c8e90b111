"""Groups of kernels can be compiled in advance by name."""

from __future__ import annotations

import pytest

from compaction.startup import background, kernel_groups


@pytest.mark.parametrize("group", [*background.PASSES, *background.RARE])
def test_a_group_is_compiled_once_it_is_loaded(group: str) -> None:
    kernel_groups.load(group)
    assert kernel_groups.missing(group) == []


def test_an_unknown_group_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernel_groups.main(["first_pass", "no_such_group"]) == 2
    assert "no kernels no_such_group" in capsys.readouterr().err
