"""The log cleaner of Kafka brokers for log directories at rest, on worker processes of one machine or on Spark.

The functions of the Python API are those of the commands; docs/python.md describes them. Nothing is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.9.0"

if TYPE_CHECKING:
    from compaction.certifier.certificate import VerifyReport as VerifyReport
    from compaction.checkup.check import Checkup as Checkup
    from compaction.commands.compact import compact as compact
    from compaction.commands.count import count as count
    from compaction.commands.doctor import doctor as doctor
    from compaction.commands.dry_run import dry_run as dry_run
    from compaction.commands.dump_log import Dumped as Dumped
    from compaction.commands.dump_log import dump as dump
    from compaction.commands.erase import erase as erase
    from compaction.commands.expire import expire as expire
    from compaction.commands.read import read as read
    from compaction.commands.read import read_arrow as read_arrow
    from compaction.commands.verify import verify as verify
    from compaction.counting.count_report import CountReport as CountReport
    from compaction.errors import CompactionError as CompactionError
    from compaction.errors import UsageError as UsageError
    from compaction.policies.comparison import Comparison as Comparison
    from compaction.report import RunReport as RunReport

#: the module of each name of the API
_PLACES = {
    "compact": "commands.compact",
    "expire": "commands.expire",
    "erase": "commands.erase",
    "dry_run": "commands.dry_run",
    "verify": "commands.verify",
    "count": "commands.count",
    "dump": "commands.dump_log",
    "doctor": "commands.doctor",
    "read": "commands.read",
    "read_arrow": "commands.read",
    "RunReport": "report",
    "Comparison": "policies.comparison",
    "VerifyReport": "certifier.certificate",
    "CountReport": "counting.count_report",
    "Dumped": "commands.dump_log",
    "Checkup": "checkup.check",
    "CompactionError": "errors",
    "UsageError": "errors",
}
__all__ = list(_PLACES)  # noqa: PLE0604 - the names above


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
