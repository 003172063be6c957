"""Settings are described once, in their fields: tables of READMEs, --help and schemas are drawn from them."""

from __future__ import annotations

import pytest
from helpers.paths import ROOT
from helpers.settings_table import fields, settings_table
from pydantic import BaseModel
from typer.testing import CliRunner

from engine_build.cli import app as build_app
from engine_build.config import BuildConfig
from runtime.config.deployment import RuntimeConfig
from server.cli import app as serve_app
from server.config import ServerSettings

SETTINGS = {"server": ServerSettings, "engine_build": BuildConfig, "runtime": RuntimeConfig}


@pytest.mark.parametrize("package", SETTINGS)
def test_the_readme_has_the_table_of_the_settings(package: str) -> None:
    readme = (ROOT / package / "README.md").read_text(encoding="utf-8")
    table = settings_table(SETTINGS[package])
    assert table in readme, f"{package}/README.md lacks this table:\n{table}"


@pytest.mark.parametrize("model", SETTINGS.values())
def test_every_setting_has_a_description_also_in_the_schema(model: type[BaseModel]) -> None:
    properties = model.model_json_schema()["properties"]
    for name, field in fields(model):
        assert str(field.description).endswith("."), name
        assert properties[name]["description"] == field.description


def test_help_has_the_descriptions() -> None:
    serve, build = (
        " ".join(CliRunner().invoke(app, arguments).stdout.split())
        for app, arguments in ((serve_app, ["--help"]), (build_app, ["build", "--help"]))
    )
    for name in ("host", "port", "insecure"):
        assert str(ServerSettings.model_fields[name].description) in serve
    assert "[default: 8000]" in serve
    assert str(BuildConfig.model_fields["threads"].description) in build
