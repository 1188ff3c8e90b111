"""How a run was called and what it ran on, for its report: versions, options, settings, each with its source.

| field | meaning |
| --- | --- |
| ``tool`` | versions: of this package, of Python, of Spark if it was started |
| ``command`` | the command's name |
| ``options`` | each option with its ``value`` and its ``source``: ``command line`` or ``default``; passwords are hidden |
| ``settings`` | the broker-level settings of the call, each with its ``value``, null for no limit, and its ``source`` |
| ``default_settings`` | Kafka's defaults of the topic-level settings; ``settings`` of a log has those that differ |

Tested by ``tests/jobs/test_terminal_output.py``.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from typing import Any

from compaction import __version__
from compaction.config.entries import TOPIC_ENTRIES
from compaction.config.resolver import BROKER_ATTRIBUTES, TOPIC_ATTRIBUTES

from . import _arguments

_HIDDEN = re.compile(r"(?i)(password|secret|credential|token|jaas)[^=]*=")


def provenance(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of the table, from parsed arguments."""
    pyspark = sys.modules.get("pyspark")
    return {
        "tool": {
            "name": "kafka-log-compaction",
            "version": __version__,
            "python": platform.python_version(),
            "spark": None if pyspark is None else pyspark.__version__,
        },
        "command": arguments.command,
        "options": {name: _option(name, arguments) for name in arguments.options},
        "settings": _broker_settings(arguments),
        "default_settings": {name: TOPIC_ENTRIES[name].default for name in ("cleanup.policy", *TOPIC_ATTRIBUTES)},
    }


def _option(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    dest, default = arguments.options[name]
    value = getattr(arguments, dest)
    return {"value": _shown(value), "source": "default" if value == default else "command line"}


def _shown(value: object) -> object:
    if isinstance(value, list):
        return [_shown(each) for each in value]
    found = _HIDDEN.search(value) if isinstance(value, str) else None
    return value if found is None else f"{found.string[: found.end()]}[hidden]"


def _broker_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    config = _arguments.read_resolver(arguments).broker()
    return {
        name: {"value": _limit(getattr(config, attribute)), "source": str(config.source(name))}
        for name, attribute in BROKER_ATTRIBUTES.items()
    }


def _limit(value: object) -> object:
    """``None`` for Kafka's way to say that there is no limit, the largest number of a double."""
    return None if value == sys.float_info.max else value
