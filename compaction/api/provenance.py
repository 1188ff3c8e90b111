"""The call and the environment of a run, for its report: versions, options, settings, each with its source.

| field | meaning |
| --- | --- |
| ``tool`` | versions: of this package, of Python, of Spark if it was started |
| ``engine`` | the engine that ran the tasks, ``local`` or ``spark``, and the ``reason`` |
| ``command`` | the command's name |
| ``options`` | each option with its ``value`` and its ``source``: ``command line``, ``call`` (the Python API) or ``default``;
    passwords are hidden |
| ``settings`` | the broker-level settings of the call, each with its ``value``, null for no limit, and its ``source`` |
| ``default_settings`` | Kafka's defaults of the topic-level settings; ``settings`` of a log has those that differ |
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

from compaction import __version__
from compaction.api.engine_choice import Engine, command_options
from compaction.api.inputs import Inputs, read_resolver
from compaction.config.entries import TOPIC_ENTRIES
from compaction.config.resolver import BROKER_ATTRIBUTES, TOPIC_ATTRIBUTES

_HIDDEN = re.compile(r"(?i)(password|secret|credential|token|jaas)[^=]*=")


#: options with other names than their parameters
_NAMES = {
    "log_dirs": "--log-dir", "topics": "--topic", "partitions": "--partition", "settings": "--set", "policies": "--policy",
    "private_keys": "--private-key", "result": "--output",
}  # fmt: skip


def provenance(inputs: Inputs, parameters: Callable[..., object], engine: Engine | None = None) -> dict[str, Any]:
    """The fields of the table.

    :param parameters: the function of the Python API, for its defaults
    """
    pyspark, options = sys.modules.get("pyspark"), command_options()
    return {
        "tool": {
            "name": "kafka-log-compaction",
            "version": __version__,
            "python": platform.python_version(),
            "spark": None if pyspark is None else pyspark.__version__,
        },
        **({} if engine is None else {"engine": engine.document()}),
        "command": inputs.command,
        "options": dict(_options(inputs, parameters)) if options is None else options,
        "settings": _broker_settings(inputs),
        "default_settings": {name: TOPIC_ENTRIES[name].default for name in ("cleanup.policy", *TOPIC_ATTRIBUTES)},
    }


def _options(inputs: Inputs, function: Callable[..., object]) -> Iterator[tuple[str, dict[str, Any]]]:
    for parameter in signature(function).parameters.values():
        value = inputs.parameters.get(parameter.name, parameter.default)
        if parameter.name not in ("spark", "where"):
            name = _NAMES.get(parameter.name, f"--{parameter.name.replace('_', '-')}")
            yield name, option(value, parameter.default)


def option(value: object, default: object, source: str = "call") -> dict[str, Any]:
    """An option with its source; passwords are hidden.

    :param source: the source of a value that is not the default
    """
    shown = _shown(value)
    plain = isinstance(shown, (str, int, float, list, type(None)))
    return {"value": shown if plain else str(shown), "source": "default" if _same(value, default) else source}


def _same(value: object, default: object) -> bool:
    return value == default or (not value and not default)


def _shown(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_shown(element) for element in value]
    match = _HIDDEN.search(value) if isinstance(value, str) else None
    return value if match is None else f"{match.string[: match.end()]}[hidden]"


def _broker_settings(inputs: Inputs) -> dict[str, Any]:
    config = read_resolver(inputs).broker()
    return {
        name: {"value": _limit(getattr(config, attribute)), "source": str(config.source(name))}
        for name, attribute in BROKER_ATTRIBUTES.items()
    }


def _limit(value: object) -> object:
    """``None`` for the largest number of a double, which means no limit in Kafka."""
    return None if value == sys.float_info.max else value
