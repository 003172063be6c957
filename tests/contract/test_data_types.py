"""The table of data types has exactly the members of the real enum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from contract.conftest import VERSIONS

from runtime.engines.tensorrt.errors import DTYPES


@pytest.mark.parametrize("version", VERSIONS)
def test_every_data_type_has_a_name(version: str, tensorrt_surface: Callable[[str], dict[str, Any]]) -> None:
    members = tensorrt_surface(version)["names"]["tensorrt.DataType"]["members"]
    assert {name for name, member in members.items() if member.get("is_member")} == set(DTYPES)
