"""Certifies what a request asks for, by any runner of tasks."""

from __future__ import annotations

from compaction.certifier.certificate import VerifyReport
from compaction.certifier.certify import certify_pairs
from compaction.certifier.checks.offset_ranges import RANGE_BYTES
from compaction.certifier.find_pairs import find_pairs
from compaction.certifier.task_runner import LocalTaskRunner, TaskRunner
from compaction.certifier.verify_request import VerifyRequest


def certify(request: VerifyRequest, range_bytes: int = RANGE_BYTES, runner: TaskRunner | None = None) -> VerifyReport:
    """In place also of logs of which nothing was replaced."""
    pairs = find_pairs(request, unreplaced=True)
    return certify_pairs(runner or LocalTaskRunner(), pairs, request.now_ms, range_bytes)
