"""Fixtures of the data source's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import unpack_sample


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample's log directory."""
    return unpack_sample(tmp_path_factory.mktemp("sample"))
