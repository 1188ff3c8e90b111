"""Where the bytes of a log are, record by record in plain Python, independent of the kernels."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.oracle import compression
from tests.oracle.disk import read_partition
from tests.oracle.records import NaiveBatch, NaiveRecord, decode

Cells = dict[Any, list[int]]


def new_cells() -> Cells:
    return defaultdict(lambda: [0, 0, 0])


def expected_usage(log: Path, now_ms: int, last_stable_offset: int, log_start: int = 0) -> dict[str, Any]:
    """The figures of a partition directory, in the form of ``found_usage``."""
    components: Counter[str] = Counter()
    states, values, producers, groups, headers = (new_cells() for _ in range(5))
    newest: dict[bytes, int] = {}
    found: list[tuple[NaiveBatch, NaiveRecord, str, int]] = []
    aborted = [txn for segment in read_partition(log) for txn in segment.aborted_txns]
    for file in sorted(log.glob("*.log")):
        content, end = file.read_bytes(), 0
        for batch in decode(content):
            if not batch.raw.strip(b"\0") or batch.magic > 2:
                break
            end = batch.position + len(batch.raw)
            if batch.control:
                components["control_batches"] += len(batch.raw) if batch.count else 0
                components["batch_overhead"] += 0 if batch.count else len(batch.raw)
            else:
                components.update(_components(batch))
            records = batch.records()
            if not records:
                states["empty_batches", None][2] += len(batch.raw)
            for record, stored in zip(records, _stored(batch, records), strict=True):
                is_aborted = any(
                    batch.transactional and (txn.producer_id == batch.producer_id)
                    and txn.first_offset <= batch.last_offset <= txn.last_offset for txn in aborted
                )  # fmt: skip
                state = _state(batch, record, is_aborted, last_stable_offset, log_start)
                if state == "keyed":
                    assert record.key is not None
                    newest[record.key] = record.offset
                found.append((batch, record, state, stored))
            if not batch.control:
                _add_headers(headers, batch, records)
        components["after_last_batch"] += len(content) - end
    for batch, record, state, stored in found:
        if state == "keyed":
            assert record.key is not None
            latest = newest[record.key] == record.offset
            state = "superseded" if not latest else "tombstone" if record.value is None else "live"
        size = len(record.key or b"") + len(record.value or b"")
        cells = [states[state, _age(record.timestamp, now_ms)]]
        if not batch.control:
            cells += [values[_class(record.value)], producers[batch.producer_id]]
            if record.key is not None:
                cells.append(groups[record.key[:2]])
        for cell in cells:
            for number, amount in enumerate((1, size, stored)):
                cell[number] += amount
    if components["after_last_batch"]:
        states["after_last_batch", None][2] = components["after_last_batch"]
    return {
        "components": {name: amount for name, amount in components.items() if amount},
        "states": dict(states), "values": dict(values), "producers": dict(producers), "headers": dict(headers),
        "groups": dict(groups),
    }  # fmt: skip


def found_usage(usage: dict[str, Any]) -> dict[str, Any]:
    """The same of a log's topic, from the JSON of the command."""

    def cell(row: dict[str, Any]) -> list[int]:
        return [row["records"], row["bytes"], row["stored_bytes"]]

    return {
        "components": {name: amount for name, amount in usage["components"].items() if amount},
        "states": {(row["state"], row["age"]): cell(row) for row in usage["states"]},
        "values": {row["value"]: cell(row) for row in usage["value_sizes"]},
        "producers": {row["producer_id"]: cell(row) for row in usage["producers"]["largest"]},
        "headers": {row["header"]["text"].encode(): cell(row) for row in usage["headers"]["largest"]},
        "groups": {row["group"]["text"].encode(): cell(row) for row in usage["groups"]["largest"]},
    }


def _plain_sizes(batch: NaiveBatch, records: list[NaiveRecord]) -> list[int]:
    if batch.magic < 2:
        return [26 + 8 * batch.magic + len(record.key or b"") + len(record.value or b"") for record in records]
    body = compression.decompress(batch.codec, batch.raw[61:], magic=2)
    sizes, at = [], 0
    for _ in records:
        length, shift, size = 0, 0, 1
        while body[at + size - 1] & 0x80:
            length |= (body[at + size - 1] & 0x7F) << shift
            shift, size = shift + 7, size + 1
        length |= body[at + size - 1] << shift
        sizes.append(size + (length >> 1))
        at += sizes[-1]
    assert at == len(body)
    return sizes


def _stored(batch: NaiveBatch, records: list[NaiveRecord]) -> list[int]:
    plain = _plain_sizes(batch, records) if records else []
    ends = [0]
    for size in plain:
        ends.append(ends[-1] + size)
    cuts = [end * len(batch.raw) // ends[-1] for end in ends] if plain else [0]
    return [after - before for before, after in zip(cuts, cuts[1:], strict=False)]


def _add_headers(cells: Cells, batch: NaiveBatch, records: list[NaiveRecord]) -> None:
    """Each header's part of its batch, in proportion to its uncompressed bytes; rounded so that all have theirs."""
    plain, end = sum(_plain_sizes(batch, records)) if records else 0, 0
    for name, value in (header for record in records for header in record.headers):
        size = len(name) + len(value or b"")
        stored = (end + size) * len(batch.raw) // plain - end * len(batch.raw) // plain
        end += size
        for number, amount in enumerate((1, size, stored)):
            cells[name][number] += amount


def _components(batch: NaiveBatch) -> Counter[str]:
    records = batch.records()
    parts: Counter[str] = Counter()
    for record in records:
        parts["keys"] += len(record.key or b"")
        parts["values"] += len(record.value or b"")
        parts["headers"] += sum(len(name) + len(value or b"") for name, value in record.headers)
    plain = sum(_plain_sizes(batch, records)) if records else 0
    parts["record_overhead"] = plain - parts["keys"] - parts["values"] - parts["headers"]
    if batch.magic == 2:
        parts["batch_overhead"] = 61
    elif batch.codec:
        parts["batch_overhead"] = len(batch.raw) - struct.unpack_from(">i", batch.raw, 22 + 8 * batch.magic)[0]
    parts["compression"] = len(batch.raw) - parts["batch_overhead"] - plain
    return parts


def _state(batch: NaiveBatch, record: NaiveRecord, aborted: bool, last_stable: int, log_start: int) -> str:
    if batch.control:
        return "control"
    if record.offset < log_start:
        return "below_log_start"
    if aborted:
        return "aborted"
    if record.key is None:
        return "no_key"
    if record.offset >= last_stable:
        return "tombstone" if record.value is None else "live"
    return "keyed"


def _age(timestamp_ms: int, now_ms: int) -> str | None:
    if timestamp_ms < 0:
        return "no timestamp"
    if timestamp_ms > now_ms:
        return "in the future"
    hours = (now_ms - timestamp_ms) / 3_600_000
    limits = {"1 hour": 1, "1 day": 24, "7 days": 168, "30 days": 720, "1 year": 8760}
    return next((f"under {name}" for name, limit in limits.items() if hours < limit), "1 year or more")


def _class(value: bytes | None) -> str:
    if value is None:
        return "no value"
    limits = {"100 B": 100, "1 kB": 1000, "10 kB": 10_000, "100 kB": 100_000, "1 MB": 1_000_000}
    return next((f"under {name}" for name, limit in limits.items() if len(value) < limit), "1 MB or more")
