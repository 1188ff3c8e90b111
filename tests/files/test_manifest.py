"""The manifest: any change to its content is detected."""

from __future__ import annotations

import json

import pytest

from compaction.errors import CorruptLogError
from compaction.files.manifest import Entry, Manifest, marker, run_of

_MANIFEST = Manifest(
    (Entry("orders-0/b", 2, 3, "x", "ab" * 16), Entry("a", 1, 2)),
    "run-1",
    "s3://bucket/out",
)


def test_a_manifest_is_read_back() -> None:
    found = Manifest.parse(_MANIFEST.to_json(), "m")
    assert (set(found.files), found.run, found.place) == (set(_MANIFEST.files), "run-1", "s3://bucket/out")
    assert found.folders == {"": ({"a": Entry("a", 1, 2)}, {"orders-0"}), "orders-0": ({"b": _MANIFEST.files[0]}, set())}


def test_malformed_content_is_an_error() -> None:
    for data in (b"", b"[]", b'{"format": 3, "files": []}', b'{"format": 1}', b'{"format": 1, "files": [{}]}', b"\xff" * 9):
        with pytest.raises(CorruptLogError, match="is not a manifest"):
            Manifest.parse(data, "m")


def test_any_flipped_bit_is_detected_or_has_no_effect() -> None:
    whole = _MANIFEST.to_json()
    told = 0
    for bit in range(8 * len(whole)):
        turned = bytearray(whole)
        turned[bit // 8] ^= 1 << bit % 8
        try:
            assert Manifest.parse(bytes(turned), "m") == Manifest.parse(whole, "m"), (bit, bytes(turned))
        except CorruptLogError:
            told += 1
    # what is left are blanks and line ends
    assert told > 7 * len(whole)


def test_any_truncation_is_detected() -> None:
    whole = _MANIFEST.to_json()
    for size in range(len(whole) - 1):
        with pytest.raises(CorruptLogError, match="changed or truncated"):
            Manifest.parse(whole[:size], "m")


def test_a_removed_or_changed_entry_is_detected() -> None:
    document = json.loads(_MANIFEST.to_json())
    changes = [
        {**document, "files": document["files"][1:]},
        {**document, "files": [{**each, "size": 7} for each in document["files"]]},
        {**document, "files": [document["files"][0], *document["files"]]},
        {**document, "place": "s3://bucket/other"},
        {**document, "format": 1},
        {"format": 1, "files": document["files"]},
    ]
    for changed in changes:
        with pytest.raises(CorruptLogError, match="changed or truncated"):
            Manifest.parse(json.dumps(changed).encode(), "m")


def test_a_manifest_of_format_1_is_still_read() -> None:
    data = b'{"format": 1, "files": [{"path": "orders-0/b", "size": 2, "mtime_ms": 3, "etag": "x"}]}'
    assert Manifest.parse(data, "m") == Manifest((Entry("orders-0/b", 2, 3, "x"),))


def test_a_marker_names_its_run() -> None:
    assert run_of(marker("r")) == "r"
    for data in (b"garbage", b"[]", b'{"run": 5}', b"\xff"):
        assert run_of(data) is None
