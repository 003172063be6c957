"""An open model on the tiny bundle, shared by the tests of one module."""

from collections.abc import Iterator

import pytest
from conftest import Built

import tickrt


@pytest.fixture(scope="module")
def model(built: Built) -> Iterator[tickrt.Model]:
    with tickrt.open(built().path) as opened:
        yield opened
