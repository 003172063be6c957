from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from runtime.base.errors import ConfigError
from server.config import ServerSettings, is_loopback_host, load_settings


def test_precedence_is_flags_environment_table_default(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"host": "127.0.0.1", "port": 1, "drain_s": 3, "keep_alive_s": 7}
    monkeypatch.setenv("TICKRT_PORT", "2")
    monkeypatch.setenv("TICKRT_DRAIN_S", "4.5")
    monkeypatch.setenv("TICKRT_REPLICA_URL", "")
    settings = load_settings(table, port=3, host=None)
    assert (settings.port, settings.drain_s, settings.keep_alive_s, settings.replica_url) == (3, 4.5, 7, "")
    assert settings.json_bytes == 2 * 2**20
    assert settings.upload_bytes == 64 * 2**20


WITH_REDIS = {"replica": "a", "redis": "redis://host"}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"prot": 1}, r"prot: is not a known name; did you mean port\?"),
        ({"port": 70000}, "port"),
        ({"drain_s": float("nan")}, "drain_s"),
        ({"host": ""}, "host"),
        ({"private_key": "key.pem"}, "needs a certificate"),
        *(({"api_key": key}, "api_key") for key in ("", "   ", "schl\u00fcssel", "key\n", " key", "k\tey")),
        ({**WITH_REDIS, "replica_url": "host:8000"}, "not an address such as https"),
        ({"replica_url": "http://host:8000"}, "need replica, its name"),
        ({"replica_address": "host:8000"}, "need replica, its name"),
        ({"replica": "a"}, "needs redis"),
        ({"admin_key": "  "}, "admin_key"),
    ],
)
@pytest.mark.parametrize("is_variable", [True, False])
def test_what_is_wrong_is_refused_by_name_in_the_table_and_in_variables(
    table: dict[str, object], says: str, is_variable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_variable and "prot" not in table:
        for name, value in table.items():
            monkeypatch.setenv(f"TICKRT_{name.upper()}", str(value))
        table = {}
    with pytest.raises(ConfigError, match=says):
        load_settings(table)


def test_a_variable_with_an_empty_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKRT_STATE", "")
    with pytest.raises(ConfigError, match="is empty; omit it"):
        load_settings({})


def test_variables_without_effect_are_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("TICKRT_PROT", "TICKRT_DEPHT", "TICKRT_SERVICE_XYZ", "TICKRT_PORT", "TICKRT_CACHE", "OTHER"):
        monkeypatch.setenv(name, "1")
    load_settings({})
    messages = [record.getMessage().removeprefix("the environment variable ") for record in caplog.records]
    assert sorted(messages) == [
        "TICKRT_DEPHT is not known and has no effect; did you mean depth in [runtime] of the deployment?",
        "TICKRT_PROT is not known and has no effect; did you mean TICKRT_PORT?",
        "TICKRT_SERVICE_XYZ is not known and has no effect",
    ]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_a_public_address_needs_a_key_or_insecure(host: str) -> None:
    with pytest.raises(ConfigError, match="API key") as error:
        load_settings({"host": host})
    assert error.value.fix == "set TICKRT_API_KEY, use --host 127.0.0.1, or add --insecure"
    assert load_settings({"host": host}, insecure=True).host == host
    assert load_settings({"host": host, "api_key": "secret"}).host == host


def test_osc_on_a_public_address_needs_insecure_also_with_a_key() -> None:
    table = {"osc_host": "0.0.0.0", "osc_port": 9001, "api_key": "secret"}
    with pytest.raises(ConfigError, match="OSC has no keys") as error:
        load_settings(table)
    assert "--insecure" in error.value.fix
    assert load_settings(table, insecure=True).osc_port == 9001
    assert load_settings({"osc_host": "0.0.0.0"}).osc_port is None


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("LocalHost", True), ("0.0.0.0", False)],
)
def test_loopback_hosts(host: str, expected: bool) -> None:
    assert is_loopback_host(host) is expected


def test_relative_paths_of_a_table_begin_at_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKRT_PRIVATE_KEY", "key.pem")
    settings = load_settings({"state": "state", "certificate": "/etc/cert.pem"}, Path("/srv"))
    assert settings.state == Path("/srv/state")
    assert settings.certificate == Path("/etc/cert.pem")
    assert settings.private_key == Path("key.pem")
    assert (settings.scheme, load_settings({"private_key": "k"} | {"certificate": "c"}).scheme) == ("https", "https")


def test_repr_and_errors_do_not_contain_the_key() -> None:
    settings = load_settings({"api_key": "very-secret", "admin_key": "very-secret"})
    assert "very-secret" not in repr(settings) + str(settings)
    with pytest.raises(ConfigError) as error:
        load_settings({"api_key": ["very-secret"]})
    assert "very-secret" not in str(error.value)


def test_origins_are_a_list_or_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings({"allowed_origins": ["https://a.org"]}).allowed_origins == ("https://a.org",)
    for text in ("https://a.org, http://b.org:81", '["https://a.org", "http://b.org:81"]'):
        monkeypatch.setenv("TICKRT_ALLOWED_ORIGINS", text)
        assert load_settings({}).allowed_origins == ("https://a.org", "http://b.org:81")
    for text in ("*", "http://[::1]:3000", "chrome-extension://abc"):
        monkeypatch.setenv("TICKRT_ALLOWED_ORIGINS", text)
        assert load_settings({}).allowed_origins == (text,)


@pytest.mark.parametrize(
    "text",
    [
        "", "https://a.org,", "https://a.org/", "https://a.org/x", "a.org", "https://", "https://A.org", "https://a.org;b",
        "https://a.org b", '["https://a.org"', "['https://a.org']", '{"https://a.org": 1}', "[1]", '"https://a.org"',
        '["https://a.org,https://b.org"]', "https://user@a.org", "null",
    ],
)  # fmt: skip
def test_other_origins_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKRT_ALLOWED_ORIGINS", text)
    with pytest.raises(ConfigError, match="allowed_origins"):
        load_settings({})


def test_edges_are_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKRT_EDGES", "https://one.example,http://127.0.0.1:8001")
    assert load_settings({}).edges == ("https://one.example", "http://127.0.0.1:8001")
    for text in ("one.example", "https://one.example/", "ws://one.example", "*"):
        monkeypatch.setenv("TICKRT_EDGES", text)
        with pytest.raises(ConfigError, match="is not an address"):
            load_settings({})
    monkeypatch.setenv("TICKRT_EDGES", ",".join(f"https://{number:030}" for number in range(21)))
    with pytest.raises(ConfigError, match="at most 768 characters in all"):
        load_settings({})


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        ServerSettings().port = 1
