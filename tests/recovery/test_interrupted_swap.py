"""Interrupted swaps without a journal, and leftover files."""

from __future__ import annotations

import pytest

from compaction.errors import CorruptLogError
from compaction.files.filesystem import join
from compaction.names import INDEX, LOG, TIMEINDEX
from compaction.recovery.interrupted_swap import finish_interrupted_swap
from tests.log.logs import data_segment, served, tree
from tests.recovery.small_logs import HERE, KINDS, PATH, log_with, name, put, three

CLEANED_0 = data_segment(0, [60, 150])


@pytest.mark.parametrize("suffix", [".clean", ".cleaned", ".clean.0123abcd", ".clean.0123abcd.7.part", ".deleted", ".tmp"])
def test_leftovers_are_removed(suffix: str) -> None:
    fs = three()
    before = tree(fs, PATH)
    put(fs, CLEANED_0, dict.fromkeys(KINDS, suffix))
    finish_interrupted_swap(fs, HERE)
    assert tree(fs, PATH) == before


def test_other_files_are_kept() -> None:
    fs = three()
    for other in ("partition.metadata", "notes.txt", "00000000000000000009.checkpoint.deleted", "leader-epoch-checkpoint"):
        fs.put(join(PATH, other), b"mine")
    before = tree(fs, PATH)
    finish_interrupted_swap(fs, HERE)
    assert tree(fs, PATH) == before


@pytest.mark.parametrize("gone", [(), (0,), (0, 100)])
def test_a_complete_swap_is_finished_with_or_without_its_sources(gone: tuple[int, ...]) -> None:
    fs = three()
    put(fs, CLEANED_0, dict.fromkeys(KINDS, ".swap"))
    for base in gone:
        for kind in KINDS:
            fs.rename(name(base, kind), name(base, kind, ".deleted"))
    finish_interrupted_swap(fs, HERE)
    assert sorted(served(fs, PATH)) == [60, 150, 200]
    assert not [file for file in fs.listdir(PATH) if file.endswith((".swap", ".deleted"))]


def test_the_last_step_of_a_swap_is_finished() -> None:
    fs = log_with(data_segment(200, [200]))
    put(fs, CLEANED_0, {LOG: "", INDEX: ".swap", TIMEINDEX: ".swap"})
    finish_interrupted_swap(fs, HERE)
    assert tree(fs, PATH) == tree(log_with(CLEANED_0, data_segment(200, [200])), PATH)


@pytest.mark.parametrize("left", [".clean", ".cleaned"])
@pytest.mark.parametrize("renamed", [(LOG,), (LOG, INDEX)])
def test_an_incomplete_swap_is_undone(left: str, renamed: tuple[str, ...]) -> None:
    fs = three()
    before = tree(fs, PATH)
    put(fs, CLEANED_0, {kind: ".swap" if kind in renamed else left for kind in KINDS})
    finish_interrupted_swap(fs, HERE)
    assert tree(fs, PATH) == before


def test_a_higher_swap_is_undone_with_a_lower_unfinished_output() -> None:
    fs = three()
    before = tree(fs, PATH)
    put(fs, CLEANED_0, dict.fromkeys(KINDS, ".clean"))
    put(fs, data_segment(200, [200]), dict.fromkeys(KINDS, ".swap"))
    finish_interrupted_swap(fs, HERE)
    assert tree(fs, PATH) == before


def test_a_swap_whose_sources_are_gone_is_finished_even_beside_an_old_leftover() -> None:
    fs = three()
    put(fs, data_segment(0, [1]), dict.fromkeys(KINDS, ".clean"))
    put(fs, data_segment(100, [150]), dict.fromkeys(KINDS, ".swap"))
    for kind in KINDS:
        fs.rename(name(100, kind), name(100, kind, ".deleted"))
    finish_interrupted_swap(fs, HERE)
    assert sorted(served(fs, PATH)) == [5, 60, 150, 200]


def test_a_truncated_swap_is_undone_while_its_sources_are_there() -> None:
    fs = three()
    before = tree(fs, PATH)
    fs.put(name(0, LOG, ".swap"), CLEANED_0.files[LOG][:-3])
    finish_interrupted_swap(fs, HERE)
    assert tree(fs, PATH) == before


def test_a_truncated_swap_without_sources_is_an_error() -> None:
    fs = log_with(data_segment(200, [200]))
    fs.put(name(0, LOG, ".swap"), CLEANED_0.files[LOG][:-3])
    with pytest.raises(CorruptLogError, match=r"00\.log\.swap at byte \d+"):
        finish_interrupted_swap(fs, HERE)
