"""The version is the same everywhere, and files of other versions have the outcome that the changelog states."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import compaction
from compaction.certifier import certificate, erasure_certificate
from compaction.errors import CompactionError, CorruptLogError, UsageError
from compaction.files import manifest
from compaction.output import journal
from compaction.output.finished import FINISHED
from compaction.policies import comparison, result
from compaction.report import SCHEMA_VERSION
from tests.golden import unpack_sample
from tools import release

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
CALL: dict[str, Any] = {"topics": ["customers"], "as_of": 1_798_761_600_000}


def test_changelog_images_and_package_have_one_version() -> None:
    assert release.unready(compaction.__version__) == []
    assert "CHANGELOG.md has no section [0.0.1]" in release.unready("0.0.1")
    assert re.search(r"^## \[(.+?)\]", CHANGELOG, re.MULTILINE)[1] == compaction.__version__  # type: ignore[index]


def test_the_table_of_formats_has_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", CHANGELOG, re.MULTILINE))
    schemas = {SCHEMA_VERSION, comparison.SCHEMA_VERSION, result.SCHEMA_VERSION, certificate.SCHEMA_VERSION}
    assert {f"`schema_version` {number}" for number in schemas} == {rows["reports of all commands"]}
    assert rows["`_manifest.json`, `_finished.json` of an output"] == str(manifest.FORMAT)
    assert rows["`_unfinished.json` of a store"] == str(manifest.FORMAT)
    assert rows["certificates of `erase`"] == f"`schema_version` {erasure_certificate.SCHEMA_VERSION}, with a seal"
    assert rows["`.compaction-swap`, the journal of a killed run in place"] == str(journal._VERSION)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A finished copy of a topic of the sample, which is beside it."""
    compaction.compact(unpack_sample(tmp_path, "customers"), output_dir=tmp_path / "copy", if_done="skip", **CALL)
    return tmp_path / "copy"


def of_format(number: int, document: dict[str, Any]) -> dict[str, Any]:
    """A record of an output, as a version with this format wrote it."""
    made = {**document, "format": number}
    if number == 4:
        made["sources"] = {path: {**log, "rules": None} for path, log in document["sources"].items()}
    for name, first in {"sources": 4, "request": 3, "run": 2, "place": 2, "checksum": 2}.items():
        if number < first:
            del made[name]
    if number == 1:
        made["files"] = [{name: value for name, value in file.items() if name != "xxh3_128"} for file in document["files"]]
    return made if number == 1 else {**made, "checksum": manifest._checksum(made)}


NEWER = "is not a manifest of format 1 to 5"
FULL = "the previous copy does not record the settings that it was made with"


@pytest.mark.parametrize(
    ("number", "since", "if_done"),
    [
        (6, UsageError(NEWER), CorruptLogError(NEWER)),
        (5, "", None),
        (4, FULL, None),
        (3, UsageError("does not record what was copied"), None),
        (2, UsageError("does not record what was copied"), UsageError("did not record its request")),
        (1, UsageError("does not record what was copied"), UsageError("did not record its request")),
    ],
)
def test_an_output_of_another_version(
    copy: Path, number: int, since: str | CompactionError, if_done: CompactionError | None
) -> None:
    record, source = copy / FINISHED, copy.parent / "kafka-logs"
    record.write_text(json.dumps(of_format(number, json.loads(record.read_text()))))

    def reasons() -> set[str]:
        call = {**CALL, "output_dir": copy.parent / "next", "since": copy}
        return {log["since_reason"] for log in compaction.compact(source, **call).to_dict()["logs"]}

    def repeated() -> None:
        compaction.compact(source, output_dir=copy, if_done="skip", **CALL)

    if isinstance(since, str):
        assert reasons() == {since}
    else:
        refused(reasons, since)
    if if_done is None:
        repeated()
    else:
        refused(repeated, if_done)


def refused(call: Callable[[], object], expected: CompactionError) -> None:
    with pytest.raises(type(expected), match=str(expected)):
        call()


def test_a_certificate_of_another_version(tmp_path: Path) -> None:
    log_dir, keys, file = unpack_sample(tmp_path, "customers"), tmp_path / "keys", tmp_path / "certificate.json"
    keys.write_text("customer-1\n")
    compaction.erase(log_dir, output_dir=tmp_path / "copy", keys=[keys], certificate=file, include_active=True, **CALL)
    written = json.loads(file.read_text())

    def verified(**changes: Any) -> Callable[[], object]:
        file.write_text(json.dumps({name: value for name, value in {**written, **changes}.items() if value is not None}))
        return lambda: compaction.verify(before=log_dir, after=tmp_path / "copy", certificate=file, keys=[keys])

    verified()()
    refused(verified(schema_version=2), UsageError("is not a certificate of an erasure"))
    refused(verified(seal=None), CompactionError("its seal does not match its fields"))
