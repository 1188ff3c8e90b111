"""What a command writes its copy to, if that is not a log directory: the interface of the layouts that are written.

Each layout is one module, which makes an :class:`ExportTarget` of the command's options; ``written_layouts`` has them by name.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from compaction.logdir.discover import Selector

#: what is accepted as lost: what the format does not have; also records that are not committed
FORMAT, UNCOMMITTED = "format", "uncommitted"


class TargetOptions(NamedTuple):
    """What a command says of its target.

    :param path: a new directory, or a URI
    :param source: the log directory or export that is read
    :param selector: the logs that are read
    :param accepted: what may be lost, ``FORMAT`` or ``UNCOMMITTED``; ``None``: nothing
    :param dry_run: nothing will be written
    """

    path: str
    source: str
    selector: Selector
    accepted: str | None = None
    dry_run: bool = False


class ExportTarget(Protocol):
    """Where logs are written in another layout."""

    @property
    def path(self) -> str:
        """A new directory, or a URI."""

    def write(self, log_dir: str, now_ms: int) -> str:
        """Write the logs of a log directory, complete or not at all; returns what was written, for the user.

        :raises LogError: a log cannot be written in this layout, or the file system refused. Nothing is left
        """
