"""The demo, served for other people's clients. `make test-clients` builds its engines and installs the clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.http_harness import Served, serving
from helpers.paths import DEMO

from runtime.config.deployment import load_deployment

API_KEY = "a-key-of-these-tests"


@pytest.fixture(scope="module")
def demo_server() -> Iterator[Served]:
    """The demo on http, with API_KEY."""
    with serving(load_deployment(DEMO), api_key=API_KEY) as served:
        yield served
