"""The rows of ``docs/errors.md`` quote messages of the program."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = {
    "{LOCK}": ".lock",
    "{CLUSTER_METADATA_TOPIC}": "__cluster_metadata",
    "{MANIFEST}": "_manifest.json",
    "{OLDEST_JAVA}": "17",
}
#: messages of the operating system
SYSTEM = {os.strerror(number) for number in errno.errorcode}


def test_the_messages_are_those_of_the_program() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "compaction").rglob("*.py"))
    for placeholder, name in NAMES.items():
        sources = sources.replace(placeholder, name)
    page = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    rows = [line.removeprefix("| ") for line in page.splitlines() if line.startswith("| ")][2:]
    quoted = re.findall(r"`([^`]+)`", "\n".join(row.partition(" | ")[0] for row in rows))
    parts = [part.strip(" :%()") for message in quoted for part in re.split("…|process", message)]
    sentences = [part for part in parts if " " in part and part not in SYSTEM]
    assert len(sentences) >= 8
    # "cannot" precedes the failed action
    assert [each for each in sentences if each.removeprefix("cannot ") not in sources] == []
