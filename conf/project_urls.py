"""The project's addresses in the metadata of its packages, from one variable of the environment that they are built in:

    PROJECT_URL=https://git.example.org/kafka-log-compaction python -m build

Without it the packages have no addresses. ``pyproject.toml`` lists them, relative to it, in ``tool.project-urls``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VARIABLE = "PROJECT_URL"


class ProjectUrls(MetadataHookInterface):  # type: ignore[misc]
    """Adds the addresses."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets ``urls``.

        :raises ValueError: the variable is not an address
        """
        base = os.environ.get(VARIABLE, "").rstrip("/")
        if not base:
            metadata["urls"] = {}
            return
        if not base.startswith(("https://", "http://")):
            raise ValueError(f"{VARIABLE}={base} is not an address: set it to one that begins with https://, or unset it")
        project = tomllib.loads(Path(self.root, "pyproject.toml").read_text(encoding="utf-8"))
        urls: dict[str, str] = project["tool"]["project-urls"]
        metadata["urls"] = {name: url.replace(f"${VARIABLE}", base) for name, url in urls.items()}
