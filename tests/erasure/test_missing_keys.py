"""Keys that no record has are named by their lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.erasure.test_erase_keys import call, write_odd


def run(tmp_path: Path, *options: object) -> dict[str, Any]:
    write_odd(tmp_path / "data")
    report = tmp_path / "report.json"
    assert call("--log-dir", tmp_path / "data", "--include-active", "--report", report, *options) == 0
    found: dict[str, Any] = json.loads(report.read_text())["erasure"]
    return found


def test_keys_that_are_not_found_are_named_by_line_and_not_by_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys, more = tmp_path / "keys.txt", tmp_path / "more.txt"
    keys.write_bytes("k\n\nsecret\r\nключ\nsecret\n".encode())
    found = run(tmp_path, "--keys", keys, "--dry-run")
    assert (found["keys_found"], found["keys_not_found"]) == (2, 1)
    assert found["not_found"] == [{"file": str(keys), "line": 3}]
    assert f"1 of 3 keys was not found: line 3 of {keys}" in capsys.readouterr().out
    more.write_bytes(b"k\nanother\n")
    found = run(tmp_path, "--keys", keys, more)
    out = capsys.readouterr().out
    assert f"2 of 4 keys were not found: line 3 of {keys}, line 2 of {more}" in out
    assert "secret" not in json.dumps(found) + out
    keys.write_bytes(b"k\n")
    assert run(tmp_path, "--keys", keys)["not_found"] == []
    assert "not found" not in capsys.readouterr().out


def test_a_key_in_the_last_segment_is_found_though_it_is_not_erased(tmp_path: Path) -> None:
    keys = tmp_path / "keys.csv"
    keys.write_text("id,name\n1,k\n2,\n3,missing\n")
    found = run(tmp_path, "--keys", keys, "--keys-column", "name", "--dry-run")
    assert found["not_found"] == [{"file": str(keys), "line": 3}]


def test_many_missing_keys_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_bytes(b"".join(b"missing-%d\n" % number for number in range(10_500)))
    found = run(tmp_path, "--keys", keys)
    assert (found["keys_not_found"], len(found["not_found"])) == (10_500, 10_000)
    out = capsys.readouterr().out
    assert f"10,500 of 10,500 keys were not found: line 1 of {keys}, " in out and " more\n" in out
