"""The steps of a run, which commands show on a terminal, write as log lines, or leave out."""

from __future__ import annotations

import logging

#: what the process has begun to do, as a message
STEPS = logging.getLogger("kafka_log_compaction.steps")
# a command decides who sees them
STEPS.propagate = False
#: lines of other programs' standard error, to be passed on
FOREIGN = logging.getLogger("kafka_log_compaction.foreign")


def step(text: str) -> None:
    """Say what begins now; it lasts until the next step."""
    STEPS.info(text)
