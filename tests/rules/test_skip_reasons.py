"""The remedies of a skipped log are exact."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.rules.log_to_clean import bytes_missing, ratio_below, ratio_remedy


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 1))
def test_the_missing_bytes_are_the_fewest_that_suffice(clean: int, dirty: int, ratio: float) -> None:
    more = bytes_missing(clean, dirty, ratio)
    if more is None:
        assert ratio == 1
        return
    assert (dirty + more) / max(clean + dirty + more, 1) > ratio
    if more:
        assert not (dirty + more - 1) / max(clean + dirty + more - 1, 1) > ratio


def test_a_bound_just_below_one_is_found_quickly() -> None:
    assert bytes_missing(1_000_000, 5, 1 - 2**-53) is not None


@given(st.floats(0.0001, 1))
def test_the_lower_bound_is_below_the_ratio_and_short(ratio: float) -> None:
    bound = ratio_below(ratio)
    assert 0 <= bound < ratio
    assert len(f"{bound:g}") <= 7


@pytest.mark.parametrize(("ratio", "bound"), [(0.31, 0.3), (0.3, 0.2), (0.05, 0.04), (1.0, 0.9), (0.1, 0.09), (1e-9, 0.0)])
def test_the_lower_bound_has_the_fewest_digits(ratio: float, bound: float) -> None:
    assert ratio_below(ratio) == bound


def test_a_log_at_a_third_needs_as_much_dirty_as_clean() -> None:
    assert ratio_remedy(2_000_000, 1_000_000, 0.5) == (
        "becomes cleanable after 1.0 MB more, or with min.cleanable.dirty.ratio=0.3"
    )


def test_a_bound_of_one_cannot_be_reached_by_bytes() -> None:
    assert ratio_remedy(1, 3, 1.0) == "becomes cleanable with min.cleanable.dirty.ratio=0.7"


def test_without_dirty_bytes_no_bound_is_suggested() -> None:
    assert ratio_remedy(5, 0, 0.5) == "becomes cleanable once an inactive segment is dirty"
