"""A store, a bucket a test, and ways to fill and read it that are not this package's."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compaction.storage.places import OPTIONS_VARIABLE

if TYPE_CHECKING:
    from tests.object_store.server import Store

_BUCKETS = itertools.count()


def files(directory: Path) -> dict[str, bytes]:
    """Path below a directory -> bytes of all files."""
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


@pytest.fixture(scope="session")
def store(missing: Callable[[str], None]) -> Iterator[Store]:
    """The server."""
    if find_spec("moto") is None:
        missing("moto (pip install -e '.[suites]')")
    from tests.object_store.server import ACCESS_KEY, SECRET_KEY, Store

    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY, AWS_EC2_METADATA_DISABLED="true")
    server = Store()
    yield server
    server.stop()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        del os.environ[name]


@pytest.fixture(scope="session")
def client(store: Store) -> Any:
    """Another client of the store."""
    import boto3

    from tests.object_store.server import REGION

    return boto3.client("s3", endpoint_url=f"http://{store.endpoint}", region_name=REGION)


class Bucket:
    """One bucket, filled and read by a client that is not this package's."""

    def __init__(self, client: Any, name: str, options: str) -> None:
        self._client, self.name, self._options = client, name, options
        client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})

    def address(self, key: str = "") -> str:
        """As a user gives it."""
        return f"s3://{self.name}/{key}{self._options}".replace("/?", "?")

    def put_tree(self, directory: Path, prefix: str) -> None:
        """Upload a directory."""
        for file in sorted(directory.rglob("*")):
            if file.is_file():
                self.put(f"{prefix}/{file.relative_to(directory)}", file.read_bytes())

    def put(self, key: str, data: bytes) -> None:
        """Upload an object."""
        self._client.put_object(Bucket=self.name, Key=key, Body=data)

    def tree(self, prefix: str) -> dict[str, bytes]:
        """Key below ``prefix`` -> bytes of all objects; what stands for directories is left out."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=f"{prefix}/")
        keys = [found["Key"] for page in pages for found in page.get("Contents", ())]
        return {key[len(prefix) + 1 :]: self.get(key) for key in keys if not key.endswith("/")}

    def get(self, key: str) -> bytes:
        """An object's bytes."""
        body: bytes = self._client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return body


@pytest.fixture
def bucket(store: Store, client: Any, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket."""
    monkeypatch.setenv(OPTIONS_VARIABLE, "{}")
    store.forget()
    return Bucket(client, f"bucket-{next(_BUCKETS)}", store.options)

