"""Servers for all tests. They start when the first test asks for them."""

from collections.abc import Iterator

import pytest

from tests.support.servers import S3Server, moto_server, seaweed_server


@pytest.fixture(scope="session")
def seaweed() -> Iterator[S3Server]:
    """A real S3 server, shared by the whole run."""
    with seaweed_server() as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    """A server that takes any key, shared by the whole run."""
    with moto_server() as server:
        yield server
