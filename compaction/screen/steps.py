"""The steps of a run, which commands show on a terminal, write as log lines, or omit."""

from __future__ import annotations

import logging

#: the current step of the process, as a message
STEPS = logging.getLogger("kafka_log_compaction.steps")
# commands add handlers
STEPS.propagate = False
#: lines of other programs' standard error
FOREIGN = logging.getLogger("kafka_log_compaction.foreign")


def step(text: str) -> None:
    """Begin a step, which lasts until the next one."""
    STEPS.info(text)
