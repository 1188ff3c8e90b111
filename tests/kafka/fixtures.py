"""Fixtures over real Kafka, imported by the conftest of every directory that needs them."""

from __future__ import annotations

import pytest

from tests.kafka.gateway import Gateway, shared_gateway


@pytest.fixture(scope="session")
def gateway() -> Gateway:
    """The JVM with Kafka's classes."""
    return shared_gateway()
