"""The steps of a run, which commands show on a terminal, write as log lines, or omit."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from compaction.screen.amounts import elapsed, size

#: the current step of the process, as a message
STEPS = logging.getLogger("kafka_log_compaction.steps")
# commands add handlers
STEPS.propagate = False
#: lines of other programs' standard error
FOREIGN = logging.getLogger("kafka_log_compaction.foreign")


@dataclass(frozen=True)
class WaveProgress:
    """The progress of a run when one of its waves begins.

    :ivar number: that of the wave, from 1
    :ivar waves: the expected number of waves
    :ivar bytes_done: of the segments that earlier waves have cleaned
    :ivar bytes_to_do: of the segments that this wave and later ones clean
    :ivar bytes_per_second: the rate of earlier waves; 0 if there are none
    :ivar seconds_left: at this rate
    """

    number: int
    waves: int
    bytes_done: int
    bytes_to_do: int
    bytes_per_second: int = 0
    seconds_left: float = 0.0

    def __str__(self) -> str:
        done = f"{size(self.bytes_done)} of {size(self.bytes_done + self.bytes_to_do)} done"
        rate = f", {size(self.bytes_per_second)}/s, about {elapsed(self.seconds_left)} left" if self.bytes_per_second else ""
        return f"wave {self.number} of about {self.waves}, {done}{rate}"


def step(message: str | WaveProgress) -> None:
    """Begins a step, which lasts until the next one, or a wave, to which the steps that follow belong."""
    STEPS.info(message)
