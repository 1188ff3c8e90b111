"""The layouts of exports, each a plug-in: an :class:`ExportLayout` with a reader and a writer, in a module of any package.

A package declares its layouts as entry points of the group ``compaction.export_layouts``: the name, which addresses begin with,
and ``module:attribute``. Those of this package are in ``compaction.exports.LAYOUTS``, because a zip on Spark's executors has no
metadata. No other package takes their names. A module is imported when a path of its layout is first used, and any exception of
another package's is a usage error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, distributions
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from compaction.errors import CompactionError, UsageError
from compaction.names import TopicPartition

if TYPE_CHECKING:
    from compaction.storage.stored_log import ExportReader, Place

T = TypeVar("T")

GROUP = "compaction.export_layouts"
#: of a layout; an entry point with another name is ignored
NAME = re.compile(r"[a-z][a-z0-9-]*")
#: what is accepted as lost: what the format does not have; also records that are not committed
FORMAT, UNCOMMITTED = "format", "uncommitted"
#: why tiered storage is never changed in place
METADATA_ELSEWHERE = "the cluster's own metadata of these objects would no longer be true"


class TargetOptions(NamedTuple):
    """The options of a command for its target.

    :param path: a new directory, or a URI
    :param source: the log directory or export that is read
    :param selected: the logs that are read
    :param accepted: what may be lost, ``FORMAT`` or ``UNCOMMITTED``; ``None``: nothing
    :param dry_run: nothing will be written
    """

    path: str
    source: str
    selected: Callable[[TopicPartition], bool]
    accepted: str | None = None
    dry_run: bool = False


class ExportTarget(Protocol):
    """Where logs are written in a layout."""

    @property
    def path(self) -> str:
        """A new directory, or a URI."""

    def write(self, log_dir: str, now_ms: int) -> str:
        """Write the logs of a log directory, complete or not at all; returns what was written, for the user.

        :raises LogError: a log cannot be written in this layout, or the file system refused. Nothing is left
        """


@dataclass(frozen=True)
class ExportLayout:
    """How exports store the segments of logs.

    :param title: of such an export, for the user
    :param reader: opens the export at a place
    :param target: of a command's options; it raises ``UsageError`` if they contradict each other, or something would be lost
        that was not accepted
    :param why_not_in_place: why its exports are never changed in place
    :param is_tiered: a cluster's metadata names its segments (``StoredSegment.name``), so that they are written again as they
        were
    :param encrypts: its segments may be encrypted
    :param spools: its reader converts segments, in the directory of the address's option ``spool``
    """

    title: str
    reader: Callable[[Place], ExportReader]
    target: Callable[[TargetOptions], ExportTarget]
    why_not_in_place: str = "other programs rely on these objects as they were written"
    is_tiered: bool = False
    encrypts: bool = False
    spools: bool = False


class _Layouts:
    """The layouts by name. Other packages are searched only for a name that this one does not have, and iteration omits them:
    help, completion and commands without a plug-in run none of their code, and do not depend on their metadata.
    """

    @cached_property
    def _own(self) -> dict[str, EntryPoint]:
        own: dict[str, str] = import_module("compaction.exports").LAYOUTS
        return {name: EntryPoint(name, value, GROUP) for name, value in own.items()}

    @cached_property
    def _installed(self) -> tuple[dict[str, EntryPoint], str]:
        """The entry points of all packages with a valid name, and the packages whose entry points are malformed."""
        entries: dict[str, EntryPoint] = {}
        malformed = []
        for package in distributions():
            try:
                declared = [entry for entry in package.entry_points if entry.group == GROUP and NAME.fullmatch(entry.name)]
            except Exception:  # the parser raises any error
                malformed.append(str(package.metadata["Name"]))
                continue
            for entry in declared:
                entries.setdefault(entry.name, entry)
        return entries, ", ".join(sorted(malformed))

    def __getitem__(self, name: str) -> ExportLayout:
        """:raises UsageError: no package has it, its module cannot be imported, or any other exception of it"""
        if name not in self:
            malformed = f"; the entry points of {self._installed[1]} are malformed" if self._installed[1] else ""
            hint = "install it here, and where Spark runs tasks"
            raise UsageError(f"no installed package has the layout {name}{malformed}", hint=hint)
        entry = self._own.get(name) or self._installed[0][name]
        with _errors_of(entry):
            layout = entry.load()
        if not isinstance(layout, ExportLayout):
            raise UsageError(f"{entry.value} is not an ExportLayout", hint=f"correct the entry point {name} of its package")
        return layout if name in self._own else _plug_in(entry, layout)

    def __contains__(self, name: object) -> bool:
        if name in self._own:
            return True
        return isinstance(name, str) and NAME.fullmatch(name) is not None and name in self._installed[0]

    def __iter__(self) -> Iterator[str]:
        """The names of this package's layouts, sorted."""
        return iter(sorted(self._own))


def _plug_in(entry: EntryPoint, layout: ExportLayout) -> ExportLayout:
    return replace(layout, reader=_checked(entry, layout.reader), target=_checked(entry, layout.target))


def _checked(entry: EntryPoint, make: Callable[[T], object]) -> Callable[[T], Any]:
    def checked(argument: T) -> _Checked:
        with _errors_of(entry):
            return _Checked(entry, make(argument))

    return checked


class _Checked:
    """A reader or target of a plug-in, whose methods raise errors of this package only."""

    def __init__(self, entry: EntryPoint, made: object) -> None:
        self._entry, self._made = entry, made

    def __getattr__(self, name: str) -> Any:
        with _errors_of(self._entry):
            value = getattr(self._made, name)
        if not callable(value):
            return value

        def checked(*args: Any) -> Any:
            with _errors_of(self._entry):
                return value(*args)

        return checked


@contextmanager
def _errors_of(entry: EntryPoint) -> Iterator[None]:
    try:
        yield
    except (CompactionError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also SystemExit, with which a command would end
        problem = f"the layout {entry.name} of {entry.value} fails: {type(error).__name__}: {error}"
        raise UsageError(problem, hint="repair or reinstall the package that has it") from error


LAYOUTS = _Layouts()
