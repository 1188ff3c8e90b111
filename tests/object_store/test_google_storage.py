"""What is Google Cloud Storage's own: which of its requests are repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.run_report import RunReport
from tests.object_store.fixtures import published
from tests.object_store.google_fixtures import GoogleBucket, GoogleServer
from tests.object_store.local_run import run

pytestmark = [pytest.mark.gs, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("media", [True, False])
def test_requests_that_fail_for_a_while_are_repeated(
    google_bucket: GoogleBucket,
    google: GoogleServer,
    sample: Path,
    on_disk: tuple[dict[str, bytes], RunReport],
    media: bool,
) -> None:
    google_bucket.put_tree(sample, "in")
    google.gate({"media": media, "times": 2}, {"method": "POST", "times": 1}, {"method": "PUT", "times": 1})
    run("--log-dir", google_bucket.address("in"), "--output-dir", google_bucket.address("out"))
    assert published(google_bucket) == on_disk[0]
