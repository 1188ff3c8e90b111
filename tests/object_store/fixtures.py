"""An interface to buckets of any store, and an S3-compatible store with one bucket per test.

Buckets are filled and read by clients that are not this package's.
"""

from __future__ import annotations

import itertools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from compaction.files.calls import call
from compaction.files.manifest import MANIFEST, MARKER
from tests.object_store.server import ACCESS_KEY, DENIED, REGION, SECRET_KEY, CutOff, Request, Store

_BUCKETS = itertools.count()
#: the longest time that a request is held
_HOLD_S = 120


def files(directory: Path) -> dict[str, bytes]:
    """Path below a directory -> bytes of all files."""
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


class Asked(NamedTuple):
    """A request to a server; ``key`` is empty if it concerns no object."""

    method: str
    key: str
    #: uploads a part of an object
    part: bool
    #: requests a range of an object
    ranged: bool
    #: requests a later page of a listing
    next_page: bool


class Bucket(ABC):
    """One bucket, filled and read by a client that is not this package's."""

    #: methods that a run sends which only reads
    reading: frozenset[str]
    #: the client's error for denied access
    denied: str
    #: names in a page of a listing
    page: int
    #: how many requests may upload the parts of an object of some 30 MB
    parts: range

    def __init__(self) -> None:
        self.name = f"bucket-{next(_BUCKETS)}"

    @abstractmethod
    def address(self, key: str = "") -> str:
        """As a user gives it."""

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Upload an object."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Remove an object."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """An object's bytes."""

    @abstractmethod
    def keys(self, prefix: str) -> list[str]:
        """Of all objects below ``prefix``."""

    @abstractmethod
    def forget(self) -> None:
        """Begin a new list of requests."""

    @abstractmethod
    def asked(self) -> list[Asked]:
        """The server's requests since the last ``forget``."""

    @abstractmethod
    def refusing(self, part: str, *, reads: bool = False) -> AbstractContextManager[None]:
        """Meanwhile no object with ``part`` in its key can be written, or with ``reads``, read."""

    @abstractmethod
    def holding(self, part: str) -> AbstractContextManager[Callable[[], bool]]:
        """Holds writes of objects with ``part`` in their key, and drops them at the end; yields whether there was one."""

    def put_tree(self, directory: Path, prefix: str = "") -> None:
        """Upload a directory."""
        for name, data in sorted(files(directory).items()):
            self.put(f"{prefix}/{name}".lstrip("/"), data)

    def tree(self, prefix: str) -> dict[str, bytes]:
        """Key below ``prefix`` -> bytes of all objects."""
        return {key[len(prefix) + 1 :]: self.get(key) for key in self.keys(prefix)}


def published(bucket: Bucket, prefix: str = "out") -> dict[str, bytes]:
    """The objects of a finished output, but for its manifest."""
    found = bucket.tree(prefix)
    assert MARKER not in found
    assert MANIFEST in found
    del found[MANIFEST]
    return found


@pytest.fixture(scope="session")
def store(missing: Callable[[str], None]) -> Iterator[Store]:
    """The server."""
    if find_spec("moto") is None:
        missing("moto (pip install -e '.[suites]')")
    variables = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_EC2_METADATA_DISABLED": "true"}
    with patch.dict(os.environ, variables):
        server = Store()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def client(store: Store) -> Any:
    """Another client of the store."""
    import boto3

    return boto3.client("s3", endpoint_url=f"http://{store.endpoint}", region_name=REGION)


class S3Bucket(Bucket):
    """A bucket of the S3 store."""

    reading = frozenset({"GET", "HEAD"})
    denied = "ACCESS_DENIED"
    page = 1000
    parts = range(2, 8)

    def __init__(self, client: Any, store: Store) -> None:
        super().__init__()
        self._client, self._store = client, store
        client.create_bucket(Bucket=self.name, CreateBucketConfiguration={"LocationConstraint": REGION})

    def address(self, key: str = "") -> str:
        return f"s3://{self.name}/{key}{self._store.options}".replace("/?", "?")

    def put(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=self.name, Key=key, Body=data)

    def remove(self, key: str) -> None:
        self._client.delete_object(Bucket=self.name, Key=key)

    def get(self, key: str) -> bytes:
        body: bytes = self._client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return body

    def keys(self, prefix: str) -> list[str]:
        """All objects below ``prefix`` without directory markers."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=f"{prefix}/")
        return [found["Key"] for page in pages for found in page.get("Contents", ()) if not found["Key"].endswith("/")]

    def forget(self) -> None:
        self._store.forget()

    def asked(self) -> list[Asked]:
        return [
            Asked(
                request.method,
                request.key.partition("/")[2],
                part=request.is_part,
                ranged=request.ranged,
                next_page="continuation-token" in request.query,
            )
            for request in self._store.requests
        ]

    @contextmanager
    def refusing(self, part: str, *, reads: bool = False) -> Iterator[None]:

        def gate(request: Request) -> None:
            if part in request.key and (request.method == "GET" if reads else request.is_write):
                raise DENIED

        with self._store.gate(gate):
            yield

    @contextmanager
    def holding(self, part: str) -> Iterator[Callable[[], bool]]:
        held, dropped = threading.Event(), threading.Event()

        def gate(request: Request) -> None:
            if part in request.key and request.is_write:
                held.set()
                dropped.wait(_HOLD_S)
                raise CutOff

        with self._store.gate(gate):
            try:
                yield held.is_set
            finally:
                dropped.set()


@pytest.fixture
def bucket(store: Store, client: Any) -> Iterator[S3Bucket]:
    """An empty bucket."""
    store.forget()
    with call():
        yield S3Bucket(client, store)


_S3 = pytest.param("bucket", id="s3", marks=pytest.mark.s3)
_GS = pytest.param("google_bucket", id="gs", marks=pytest.mark.gs)
#: for a test of what does not depend on the client of the store: on the one whose server takes less time
on_one_store = pytest.mark.parametrize("any_bucket", [_GS], indirect=True)


@pytest.fixture(params=[_S3, _GS])
def any_bucket(request: pytest.FixtureRequest) -> Bucket:
    """An empty bucket of each store; only the servers of the selected stores are started."""
    found: Bucket = request.getfixturevalue(request.param)
    return found
