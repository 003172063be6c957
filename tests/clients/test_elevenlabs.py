"""ElevenLabs' own SDK, unmodified, against the demo."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.http_harness import TIMEOUT_S, Served

elevenlabs = pytest.importorskip("elevenlabs", reason="needs the extra clients (make test-clients)")
pytestmark = pytest.mark.clients


def client(served: Served, key: str) -> Any:
    return elevenlabs.ElevenLabs(base_url=served.url, api_key=key, timeout=TIMEOUT_S)


def test_a_wrong_key_is_the_sdks_error(demo_server: Served) -> None:
    from elevenlabs.core.api_error import ApiError

    with pytest.raises(ApiError) as error:
        list(client(demo_server, "wrong").music.stream(prompt="techno", music_length_ms=3000))
    assert error.value.status_code == 401
    assert error.value.body["detail"]["status"] == "unauthorized"
    assert "API key" in error.value.body["detail"]["message"]
