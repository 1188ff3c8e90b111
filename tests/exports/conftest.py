"""The tests have no addresses and keys of other tests, the objects of Aiven's plugin, and a store on this machine."""

from __future__ import annotations

from tests.exports.exports import coding, no_exports_known, objects, source
from tests.files.remote_places import bucket

__all__ = ["bucket", "coding", "no_exports_known", "objects", "source"]
