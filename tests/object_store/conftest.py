"""The stores, and the logs that are put into them."""

from __future__ import annotations

from tests.object_store.fixtures import any_bucket, google, google_bucket
from tests.object_store.local_run import large, on_disk, sample

__all__ = ["any_bucket", "google", "google_bucket", "large", "on_disk", "sample"]
