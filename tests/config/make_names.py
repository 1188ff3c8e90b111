"""Writes ``compaction/config/topic_names.txt`` and ``broker_names.txt``: the configuration names of all versions of Kafka.

``python -m tests.config.make_names`` starts one JVM per version, one after the other.
``tests/config/test_entries_against_kafka.py`` compares the files with Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.kafka.gateway import Gateway
from tests.kafka.jars import VERSIONS

CONFIG = Path(__file__).resolve().parents[2] / "compaction" / "config"
#: the names of a version, by kind of configuration: their types
Names = Mapping[str, Mapping[str, str]]
_TEXT = ("CLASS", "PASSWORD")
_HEADS = {
    "topic": "# The configuration names of topics: LogConfig.CONFIG of each version.\n",
    "broker": "# The configuration names of brokers: KafkaConfig.configDef of each version, and dynamic quotas.\n",
}
_FOOT = (
    "# Kafka {0} to {1}: name, type (the newest version's; classes and passwords are STRING), versions that have it if\n"
    "# not all do. Written by tests/config/make_names.py.\n"
)


def minor(version: str) -> str:
    """``3.9`` of ``3.9.2``."""
    return version.rsplit(".", 1)[0]


#: the newest release of each minor version, ascending
RELEASES = tuple({minor(version): version for version in VERSIONS}.values())


def names_of(gateway: Gateway) -> Names:
    """The names that a version has, with their types."""
    return {
        "topic": _types(_definition(gateway, gateway.named("LogConfig"), "configDefCopy")),
        "broker": {
            **_types(_definition(gateway, "kafka.server.KafkaConfig", "configDef")),
            **_types(_while_running(gateway)),
        },
    }


def _definition(gateway: Gateway, owner: str, method: str) -> Any:
    """A ``ConfigDef``, of a Java class or of a Scala object."""
    scala = gateway.exists(f"{owner}$")
    return getattr(getattr(gateway.cls(f"{owner}$"), "MODULE$") if scala else gateway.cls(owner), method)()


def _while_running(gateway: Gateway) -> Any:
    """The quotas of replication, which ``server.properties`` does not take."""
    for owner in ("org.apache.kafka.server.config.QuotaConfig", "org.apache.kafka.server.config.QuotaConfigs"):
        if gateway.exists(owner) and any(m.getName() == "brokerQuotaConfigs" for m in gateway.kind(owner).getMethods()):
            return gateway.cls(owner).brokerQuotaConfigs()
    scala = getattr(gateway.cls("kafka.server.DynamicConfig$Broker$"), "MODULE$")
    return gateway.call(scala, "brokerConfigDef")


def _types(definition: Any) -> dict[str, str]:
    keys = definition.configKeys()
    found = {name: keys.get(name).type.toString() for name in definition.names()}
    return {name: "STRING" if kind in _TEXT else kind for name, kind in found.items()}


def text_of(kind: str, versions: Sequence[tuple[str, Names]]) -> str:
    """A file's content from the names of each minor version, ascending."""
    minors = [version for version, _ in versions]
    lines = []
    for name in sorted({name for _, names in versions for name in names[kind]}):
        having = [name in names[kind] for _, names in versions]
        newest = max(at for at, has in enumerate(having) if has)
        lines.append(f"{name} {versions[newest][1][kind][name]}{_spans(having, minors)}\n")
    return _HEADS[kind] + _FOOT.format(minors[0], minors[-1]) + "".join(lines)


def _spans(having: Sequence[bool], minors: Sequence[str]) -> str:
    """E.g. `` -3.9``, `` 3.6-``, `` 4.2-4.2 4.4-``; nothing if all versions have the name."""
    if all(having):
        return ""
    starts = [at for at, has in enumerate(having) if has and not (at and having[at - 1])]
    ends = [at for at, has in enumerate(having) if has and not (at + 1 < len(having) and having[at + 1])]
    firsts = ["" if at == 0 else minors[at] for at in starts]
    lasts = ["" if at == len(minors) - 1 else minors[at] for at in ends]
    return "".join(f" {first}-{last}" for first, last in zip(firsts, lasts, strict=True))


def main() -> None:
    """Writes both files."""
    found = []
    for version in RELEASES:
        gateway = Gateway(version=version)
        try:
            found.append((minor(version), names_of(gateway)))
        finally:
            gateway.close()
    for kind in _HEADS:
        (CONFIG / f"{kind}_names.txt").write_text(text_of(kind, found), encoding="utf-8")


if __name__ == "__main__":
    main()
