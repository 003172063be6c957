"""OSC surfaces as the settings say."""

from __future__ import annotations

import sys

import pytest

from runtime.errors import ConfigError
from server.compat.osc.opening import open_osc
from server.config import ServerSettings


def test_osc_without_its_package_is_a_config_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "server.compat.osc.server", None)
    assert open_osc(ServerSettings()) is None
    with pytest.raises(ConfigError) as error:
        open_osc(ServerSettings(osc_port=0))
    assert "tickrt[osc]" in error.value.fix
