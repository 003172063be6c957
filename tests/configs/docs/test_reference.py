"""Pages that are drawn from the source: they have everything that the source has."""

from __future__ import annotations

import re

import pytest
import typer
from helpers.paths import DEMO_BUNDLE, ROOT

import tickrt
from runtime.commands.generate import app as generate
from runtime.commands.startup import COMMANDS
from runtime.config.bundle import load_bundle
from runtime.live.protocol.messages import CLIENT_MESSAGES
from runtime.live.protocol.server_messages import SERVER_MESSAGES
from runtime.requests.options import GenerationOptions
from runtime.requests.validation import untaken_options
from server.asgi.openapi import GenerationBody

reference = pytest.importorskip("configs.docs.reference")
pytestmark = pytest.mark.docs


def rows(text: str) -> dict[str, list[str]]:
    """The cells of every row of every table, by its first one without backticks."""
    lines = re.findall(r"^\| `([^`|]+)`[^|]*\|(.*)\|$", text, re.MULTILINE)
    return {name: [cell.strip() for cell in re.split(r"(?<!\\)\|", rest)] for name, rest in lines}


def test_every_command_has_all_of_its_options() -> None:
    text = reference.commands()
    for name in COMMANDS:
        assert f"\n## {name}\n" in f"\n{text}"
    exporter = "python -m engine_build.export acestep"
    for name in ("tickrt-build list", "tickrt-build init", "tickrt-profile diff", "tickrt-cluster up", exporter):
        assert f"\n### {name}\n" in text
    flags = {flag for item in typer.main.get_command(generate).params for flag in item.opts if flag.startswith("--")}
    assert "--guidance" in flags
    assert {flag for flag in flags if flag not in text} == set()


def test_every_option_has_what_it_takes_and_what_it_does() -> None:
    text = reference.options()
    found = rows(text)
    left_out = set(GenerationBody.model_fields) - set(found)
    # The demo has no voice, no timbre and no tasks of tracks.
    assert left_out <= set(untaken_options(load_bundle(DEMO_BUNDLE))) | {"timbre_id"}
    assert found["bpm"][0] == "number 60 to 180"
    assert found["steps"][1] == "`7`"
    assert found["seed"][2] == GenerationOptions.model_fields["seed"].description
    assert "[WeightedPrompt](#weightedprompt)" in found["prompt"][0]
    assert "### WeightedPrompt" in text


def test_every_route_of_the_document_is_there() -> None:
    text = reference.http()
    document = reference.openapi()
    shown = re.findall(r"^### (\w+) (\S+)$", text, re.MULTILINE)
    paths = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert set(shown) == paths
    assert ("POST", "/v1/audio/generations") in paths
    assert "X-Generation-Id" in text


def test_every_message_and_every_member_is_there() -> None:
    text = reference.messages()
    for direction, models in (("", CLIENT_MESSAGES), (" (of the server)", SERVER_MESSAGES)):
        for kind, model in models.items():
            section = text.partition(f"\n### {kind}{direction}\n")[2].partition("\n### ")[0]
            names = {field.alias or name for name, field in model.model_fields.items()} - {"type"}
            assert names <= set(rows(section)), kind


@pytest.mark.parametrize("page", ["options", "http", "messages"])
def test_every_object_that_is_named_is_described(page: str) -> None:
    text = reference.DRAWN[page]()
    headings = {heading.lower() for heading in re.findall(r"^### (.+)$", text, re.MULTILINE)}
    assert {link for link in re.findall(r"\]\(#([\w-]+)\)", text) if link not in headings} == set()


def test_every_public_name_of_the_package_is_there() -> None:
    assert set(re.findall(r"^### (\w+)$", reference.python(), re.MULTILINE)) == set(tickrt.__all__)


def test_every_drawn_page_is_in_the_site() -> None:
    named = [
        name
        for path in (ROOT / "configs/docs/pages").glob("*.md")
        for name in re.findall(r"<!-- drawn: (\w+) -->", path.read_text(encoding="utf-8"))
    ]
    assert sorted(named) == sorted(reference.DRAWN)
