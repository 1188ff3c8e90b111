"""The engine of the page "How to add" compacts the sample as the others do."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import compaction
from compaction import engine_choice
from compaction.options.table import LOCAL
from tests.conftest import ROOT
from tests.golden import unpack_sample
from tests.large_log import replace_log, write_large_log

AS_OF_MS = 1_798_761_600_000


def _files(log_dir: Path) -> dict[str, bytes]:
    return {str(path.relative_to(log_dir)): path.read_bytes() for path in log_dir.rglob("0*.*") if path.is_file()}


def test_the_engine_of_the_page_does_what_the_others_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/how-to-add.md").read_text()
    section = page[page.index("## An engine") :]
    (code,) = re.findall(r"```python\n(.*?)```", section[: section.index("\n## ", 1)], re.DOTALL)
    (tmp_path / "thread_engine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    engine = importlib.import_module("thread_engine").ThreadEngine
    log_dir = unpack_sample(tmp_path)
    replace_log(log_dir, "customers", write_large_log(tmp_path / "large") / "orders-0")
    rules: dict[str, Any] = {"include_active": True, "as_of": AS_OF_MS}
    compaction.compact(log_dir, output_dir=tmp_path / "local", engine=LOCAL, **rules)
    counted = compaction.count(log_dir, engine=LOCAL).to_dict()
    monkeypatch.setitem(engine_choice._ENGINES, LOCAL, lambda choice: engine())
    compaction.compact(log_dir, output_dir=tmp_path / "threads", engine=LOCAL, **rules)
    assert _files(tmp_path / "threads") == _files(tmp_path / "local") != {}
    assert compaction.count(log_dir, engine=LOCAL).to_dict()["topics"] == counted["topics"]
