"""Reading a segment file through Kafka's own classes, compressed batches and all magics included."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from tests.kafka.encode import Record
from tests.kafka.gateway import Gateway


def kafka_records(gateway: Gateway, segment: Path) -> list[Record]:
    """Every record of a ``.log`` file in order, control records included; a damaged batch raises."""
    opened = gateway.cls(gateway.named("FileRecords")).open(gateway.cls("java.io.File")(str(segment)), False)
    try:
        to_list = gateway.cls("org.apache.kafka.common.utils.Utils").toList
        for batch in to_list(opened.batchIterator()):
            batch.ensureValid()
        found = to_list(opened.records().iterator())
        kind = gateway.kind(gateway.named("Record"))
        simple = gateway.kind(gateway.named("SimpleRecord"))
        lookup, type_of = (
            gateway.cls("java.lang.invoke.MethodHandles").lookup(),
            gateway.cls("java.lang.invoke.MethodType").methodType,
        )
        offset = lookup.findVirtual(kind, "offset", type_of(gateway.cls("java.lang.Long").TYPE))
        copy = lookup.findConstructor(simple, type_of(gateway.cls("java.lang.Void").TYPE, kind))
        offsets, rest = (gateway.fields(_mapped(gateway, found, handle)) for handle in (offset, copy))
    finally:
        opened.close()
    headers = (tuple((name.encode(), value) for name, value in headers_of(one["headers"])) for one in rest)
    return [
        Record(offset, one["timestamp"], decoded(one["key"]), decoded(one["value"]), pairs)
        for offset, one, pairs in zip(offsets, rest, headers, strict=True)
    ]


def decoded(text: str | None) -> bytes | None:
    """Bytes of a field that ``Gateway.fields`` returned as text."""
    return None if text is None else base64.b64decode(text)


def headers_of(fields: list[dict[str, Any]]) -> tuple[tuple[str, bytes | None], ...]:
    """Kafka's record headers, whose name and value are decoded lazily."""
    return tuple((_header_name(one), decoded(one["value"] or one["valueBuffer"])) for one in fields)


def _header_name(fields: dict[str, Any]) -> str:
    if fields["key"] is not None:
        return str(fields["key"])
    return (decoded(fields["keyBuffer"]) or b"").decode("utf-8", "replace")


def _mapped(gateway: Gateway, items: Any, handle: Any) -> Any:
    anything = gateway.kind("java.lang.Object")
    signature = gateway.cls("java.lang.invoke.MethodType").methodType(anything, anything)
    proxies = gateway.cls("java.lang.invoke.MethodHandleProxies")
    function = proxies.asInterfaceInstance(gateway.kind("java.util.function.Function"), handle.asType(signature))
    return items.stream().map(function).toList()
