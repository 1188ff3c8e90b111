"""The table of commands. The console command, the applications of ``spark-submit``, completion and the documentation come from
it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import NamedTuple

#: the console command, and the launcher on clusters
PROGRAM = "kafka-log-compaction"
SUBMIT = "spark-submit"


class Command(NamedTuple):
    """A command.

    :ivar name: its name in the console command
    :ivar application: its module in ``compaction.commands``, with ``OPTIONS`` and ``main(argv)``, and its file in ``jobs/``
    :ivar purpose: its line of help
    """

    name: str
    application: str
    purpose: str

    def load(self) -> ModuleType:
        """Its module; it is imported only when the command is run or described."""
        return import_module(f"compaction.commands.{self.application}")


COMMANDS = (
    Command("compact", "compact", "clean logs as Kafka's log cleaner would; with --dry-run only report the result"),
    Command("expire", "expire", "apply the delete policy: retention by time, by size and by log start offset"),
    Command("erase", "erase", "erase all records of given keys; other records do not change"),
    Command("dry-run", "dry_run", "compare several policies side by side, without writing to the logs"),
    Command("verify", "verify", "verify that cleaning lost and changed no record; explain why a record was dropped"),
    Command("dump-log", "dump_log", "print segments, indexes and snapshots as Kafka's own dump tool does"),
    Command("count", "count", "count records, distinct keys and tombstones, exactly, and name the largest keys"),
    Command("doctor", "doctor", "check the machine and log directories, find logs whose cleaner has died, suggest fixes"),
    Command("warm-up", "warm_up", "compile all kernels in advance, for example when an image is built"),
    Command("completion", "completion", "print a script that completes these commands and their options in a shell"),
)
