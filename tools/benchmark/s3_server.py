"""A fast S3-compatible store on this machine: S3Proxy, whose objects are the files of a directory."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kafka.broker import free_ports, listens
from tests.kafka.gateway import java_executable
from tests.kafka.jars import maven_classpath

_S3PROXY = "org.gaul:s3proxy:2.6.0"
_START_S = 60
#: Java adds the first ``user.``
_CHECKSUM = "user.user.content-md5"
#: it checks no credentials, but clients need some
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_EC2_METADATA_DISABLED": "true"}


@contextmanager
def s3_server(bucket: Path) -> Iterator[Callable[[str], str]]:
    """A server whose bucket is a directory, as long as the context is open; yields the addresses of keys."""
    (port,) = free_ports(1)
    settings = {
        "s3proxy.authorization": "none",
        # checksums that clients ask for
        "s3proxy.ignore-unknown-headers": "true",
        "s3proxy.endpoint": f"http://127.0.0.1:{port}",
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(bucket.parent),
        "jclouds.identity": "bench",
        "jclouds.credential": "bench",
    }
    os.environ.update(_CREDENTIALS)
    _put_checksums(bucket)
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
        file.write("\n".join(f"{name}={value}" for name, value in settings.items()))
        file.flush()
        command = [java_executable(), "-cp", maven_classpath(_S3PROXY), "org.gaul.s3proxy.Main", "--properties", file.name]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port, process)
            yield lambda key: f"s3://{bucket.name}/{key}?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        finally:
            process.terminate()
            process.wait()


def _put_checksums(bucket: Path) -> None:
    """Make files objects that S3Proxy lists: each with its MD5."""
    for path in filter(Path.is_file, bucket.rglob("*")):
        if _CHECKSUM not in os.listxattr(path):
            os.setxattr(path, _CHECKSUM, hashlib.md5(path.read_bytes(), usedforsecurity=False).digest())


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """:raises RuntimeError: the server does not start"""
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        if listens(port):
            return
        time.sleep(0.1)
    raise RuntimeError(f"S3Proxy does not listen on port {port}")
