"""The error loop: a sample in every test run, more in the suites, everything with ``python -m``."""

from __future__ import annotations

import pytest

from tests.side_by_side import in_processes
from tests.trust.checks import undisturbed
from tests.trust.error_loop import FailingFileSystem, Fault, Mode, Search, faults, look, sample
from tests.trust.scenes import KINDS, Kind, kind_of, operations

_NAMES = [kind.name.replace(" ", "-") for kind in KINDS]
#: failing operations of each kind in the suites; ``python -m tests.trust.error_loop --all`` tries all, in half an hour
_MANY = 10


def violations(kind: Kind, count: int) -> list[str]:
    search = Search(kind)
    return [str(finding) for fault in sample(faults(kind), count) for finding in search.look(fault)]


@pytest.mark.parametrize("kind", KINDS, ids=_NAMES)
def test_no_failing_operation_loses_or_changes_a_record(kind: Kind) -> None:
    assert violations(kind, 3) == []


@pytest.mark.crash
def test_none_of_many_failing_operations_loses_or_changes_a_record() -> None:
    # neighbours leave the same states, which a process checks once
    cases = [(kind, fault) for kind in KINDS for fault in sorted(sample(faults(kind), _MANY), key=lambda fault: fault.at)]
    assert len(cases) > 5 * _MANY
    assert [finding for findings in in_processes(look, cases) for finding in findings] == []


@pytest.mark.parametrize("kind", KINDS, ids=_NAMES)
def test_an_undisturbed_run_changes_the_log_unless_it_is_dry(kind: Kind) -> None:
    found = undisturbed(kind)
    assert (found.start == found.end) is kind.dry_run
    for topic, kept in found.survivors.items():
        assert kept.items() <= found.records_before[topic].items()


def test_a_segment_deletion_that_fails_leaves_no_index_or_snapshot_without_its_log() -> None:
    kind = kind_of("expire")
    renames = [each.number for each in operations(kind) if each.name == "rename" and each.target.endswith(".deleted")]
    search = Search(kind)
    assert [str(finding) for at in renames for finding in search.look(Fault(Mode.READ_ONLY, at))] == []


def test_a_split_that_fails_between_its_renames_is_undone_by_the_next_run() -> None:
    kind = kind_of("compact a log that overflows and one without indexes")
    renames = [each.number for each in operations(kind) if each.name == "rename" and each.path.endswith(".cleaned")]
    search = Search(kind)
    assert len(renames) == 9
    assert [str(finding) for at in renames for finding in search.look(Fault(Mode.ONCE, at))] == []


def test_the_report_is_written_even_if_the_claim_cannot_be_removed() -> None:
    kind = kind_of("compact in place")
    unlink = [each.number for each in operations(kind) if each.name == "unlink" and "/.compaction-run." in each.path][-1]
    ended = kind.run(FailingFileSystem(kind.start(), Fault(Mode.ONCE, unlink)))
    assert (ended.code, len(ended.statuses)) == (0, 4)
