"""Calls of commands that are read, but not executed."""

from __future__ import annotations

from collections.abc import Sequence

from compaction.certifier.find_pairs import VerifyRequest
from compaction.cli.parser import Parser
from compaction.commands import compact, verify
from compaction.options.inputs import Inputs
from compaction.options.table import SIDES


def verify_request(options: Sequence[str]) -> VerifyRequest:
    """The request of ``verify`` with these options."""
    given = Parser(verify.OPTIONS).parse_args(options)
    sides = {name: vars(given)[name] for name in SIDES}
    return verify.read_call(verify.OPTIONS.complete(vars(given)), **sides)[0]


def compact_inputs(options: Sequence[str]) -> Inputs:
    """The inputs of ``compact`` with these options."""
    given = Parser(compact.OPTIONS).parse_args(options)
    return Inputs.of(compact.OPTIONS, compact.OPTIONS.complete(vars(given)), log_dirs=given.log_dirs)
