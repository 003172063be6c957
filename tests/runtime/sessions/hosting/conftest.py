"""An open pipeline on the tiny bundle, shared by the tests of one module."""

from collections.abc import Iterator

import pytest
from conftest import Built

from runtime.pipeline.pipeline import Pipeline, open_pipeline


@pytest.fixture(scope="module")
def pipeline(built: Built) -> Iterator[Pipeline]:
    with open_pipeline(built()) as opened:
        yield opened
