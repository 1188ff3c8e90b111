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
import sys
from typing import Any

from compaction import __version__
from compaction.config.entries import TOPIC_ENTRIES
from compaction.config.resolver import BROKER_ATTRIBUTES, TOPIC_ATTRIBUTES
from compaction.engine_choice import EngineChoice, surroundings
from compaction.options.inputs import Inputs, read_resolver
from compaction.options.option import with_source


def provenance(inputs: Inputs, engine: EngineChoice | None = None) -> dict[str, Any]:
    """The fields of the table."""
    pyspark, options = sys.modules.get("pyspark"), surroundings().options
    return {
        "tool": {
            "name": "kafka-log-compaction",
            "version": __version__,
            "python": platform.python_version(),
            "spark": None if pyspark is None else pyspark.__version__,
        },
        **({} if engine is None else {"engine": engine.document()}),
        "command": inputs.command.name,
        "options": _options(inputs) if options is None else options,
        "settings": _broker_settings(inputs),
        "default_settings": {name: TOPIC_ENTRIES[name].default for name in ("cleanup.policy", *TOPIC_ATTRIBUTES)},
    }


def _options(inputs: Inputs) -> dict[str, dict[str, Any]]:
    given = ((inputs.command.rows[name], value) for name, value in inputs.given.items())
    return {row.flag: with_source(row.shown(value), row.default) for row, value in given if row.flag}


def _broker_settings(inputs: Inputs) -> dict[str, Any]:
    config = read_resolver(inputs).broker()
    return {
        name: {"value": _limit(getattr(config, attribute)), "source": str(config.source(name))}
        for name, attribute in BROKER_ATTRIBUTES.items()
    }


def _limit(value: object) -> object:
    """``None`` for the largest number of a double, which means no limit in Kafka."""
    return None if value == sys.float_info.max else value
