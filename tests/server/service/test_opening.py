"""What the settings name is opened; what is missing for it is said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runtime.errors import ConfigError
from server.config import ServerSettings
from server.service.opening import open_session_store, open_source_files
from server.sources.folder import SourceFolder


def test_sessions_are_stored_where_the_settings_say(tmp_path: Path) -> None:
    assert open_session_store(ServerSettings()) is None
    store = open_session_store(ServerSettings(state=tmp_path / "state"))
    assert store is not None
    with store, pytest.raises(ConfigError, match="in use by another server"):
        open_session_store(ServerSettings(state=tmp_path / "state"))


def test_redis_without_its_package_is_a_config_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "runtime.sessions.storage.redis_store", None)
    with pytest.raises(ConfigError) as error:
        open_session_store(ServerSettings(redis="redis://127.0.0.1"))
    assert "tickrt[redis]" in error.value.fix


def test_sources_are_kept_where_sessions_are(tmp_path: Path) -> None:
    files = open_source_files(ServerSettings(state=tmp_path))
    assert isinstance(files, SourceFolder)
    assert files.path == tmp_path / "sources"
