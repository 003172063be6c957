"""[options] of a bundle on every surface: outside is refused with the range, inside is recorded as it is used."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.factories import tiny_deployment
from helpers.http_harness import Served, problem, serving
from helpers.live_player import player
from typer.testing import CliRunner

import tickrt
from runtime.audio.formats import latents_bytes, read_latents
from runtime.audio.metadata import GenerationMetadata, latents_tags, read_metadata
from runtime.base.errors import RequestError
from runtime.commands import generate as cli
from runtime.commands.terminal import EXIT_INVALID
from runtime.config.deployment import Deployment
from runtime.config.option_ranges import ANY_MODEL, MEMBERS, OptionRanges
from runtime.live.parts.controls import CONTROL_NAMES
from runtime.live.protocol.server_messages import Applied, Problem
from runtime.pipeline.generation import LongGeneration
from runtime.requests.options import GenerationOptions, parse_options
from server.protocols.osc.addresses import AddressTable

TABLE = """
[options]
bpm = { min = 60, max = 180.5 }
steps = { min = 2, max = 6 }
shift = { min = 1, max = 5 }
guidance = { min = 1, max = 8, usual = [1, 6] }
velocity_scale = { min = 0.5, max = 2 }
momentum = { min = -0.9, max = 0.5 }
ode_noise = { max = 0.4 }
plan_temperature = { min = 0.2, max = 1.5 }
plan_guidance = { max = 3 }
"""
# What is not used without a plan is asked for with one.
PLAN = ("plan_temperature", "plan_guidance")
NAMES = tuple(name for name in OptionRanges.model_fields if name not in MEMBERS)


@pytest.fixture(scope="module")
def deployment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    folder = tmp_path_factory.mktemp("ranges")
    path = tiny_deployment(folder, conditions=True, planner={"capacity": 512}, more=FEW_VARIANTS)
    bundle = folder / "tiny" / "bundle.toml"
    bundle.write_text(bundle.read_text(encoding="utf-8") + TABLE, encoding="utf-8")
    return built(path)


@pytest.fixture(scope="module")
def server(deployment: Deployment) -> Iterator[Served]:
    with serving(deployment) as served:
        yield served


@pytest.fixture(scope="module")
def model(deployment: Deployment) -> Iterator[tickrt.Model]:
    with tickrt.open(deployment.path) as opened:
        yield opened


def ranges(server: Served) -> OptionRanges:
    found = server.pipeline.bundle.options
    assert set(found.narrowed) == set(NAMES)
    return found


def outside(server: Served, name: str) -> list[float]:
    """Just outside at both ends, where any model's range leaves room."""
    taken, step = getattr(ranges(server), name), 1 if name == "steps" else 0.01
    values = [type(step)(end) for end in (taken.min - step, taken.max + step)]
    return [value for value in values if getattr(ANY_MODEL, name).outside(value) is None]


def by_json(server: Served, name: str, value: float) -> str:
    return str(problem(server.post(**{name: value}), 422)["errors"])


def by_options(server: Served, name: str, value: float) -> str:
    """Options that were not made for this bundle."""
    with pytest.raises(RequestError) as caught:
        LongGeneration(server.pipeline, parse_options({"prompt": "a", name: value}))
    return str(caught.value)


def by_open(server: Served, name: str, value: float) -> str:
    with player(server) as live:
        live.send(type="open", controls={name: value})
        return str(live.receive_until(lambda item: isinstance(item, Problem)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("refused_by", [by_json, by_options, by_open])
def test_outside_is_refused_with_the_range(
    server: Served, refused_by: Callable[[Served, str, float], str], name: str
) -> None:
    if refused_by is by_open and name not in CONTROL_NAMES:
        pytest.skip("a session has no such control")
    taken = getattr(ranges(server), name)
    values: list[Any] = outside(server, name)
    if name in ("guidance", "velocity_scale", "momentum", "ode_noise"):
        values.append([taken.max, values[-1]])
    for value in values:
        number = value[-1] if isinstance(value, list) else value
        text = refused_by(server, name, value)
        assert name in text
        assert f"is {number:g}, this model takes {taken} ([options.{name}] of its bundle)" in text


def test_every_wrong_number_of_a_body_is_found_at_once(server: Served) -> None:
    """Also one that no model takes: what counts is the range of this one."""
    errors = problem(server.post(bpm=400, guidance=[2, 9], seconds=-1), 422)["errors"]
    assert [item["pointer"] for item in errors] == ["/guidance", "/bpm", "/seconds"]
    assert [item["detail"].partition(" (")[0] for item in errors[:2]] == [
        "is 9, this model takes 1 to 8", "is 400, this model takes 60 to 180.5"
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("by_like", [False, True])
def test_the_command_refuses_before_it_opens_an_engine(
    deployment: Deployment, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, by_like: bool
) -> None:
    monkeypatch.setattr(cli, "open_pipeline", lambda *_, **__: pytest.fail("an engine was opened"))
    flag, taken, out = f"--{name.replace('_', '-')}", getattr(ranges(server), name), tmp_path / "out.wav"
    for value in outside(server, name):
        arguments = ["--prompt", "a", f"{flag}={value}"]
        if by_like:
            made = GenerationMetadata(model="tiny", model_version="1.0.0", options={"prompt": "a", name: value})
            tags = latents_tags(25.0, made.to_tag("latents"))
            (tmp_path / "made.safetensors").write_bytes(latents_bytes(np.zeros((2, 8), np.float32), tags))
            arguments = ["--like", str(tmp_path / "made.safetensors")]
        result = CliRunner().invoke(cli.app, [str(deployment.path), *arguments, "--out", str(out)])
        text = " ".join(result.output.split())
        assert (result.exit_code, out.exists()) == (EXIT_INVALID, False)
        assert f"{flag}: is {value:g}, this model takes {taken} ([options.{name}] of its bundle)" in text
        assert f"fix: give {taken.nearest(value):g}" in text


@pytest.mark.parametrize("end", ["min", "max"])
def test_inside_is_taken_and_what_is_recorded_is_what_is_used(
    deployment: Deployment, server: Served, tmp_path: Path, end: str
) -> None:
    values = {name: getattr(getattr(ranges(server), name), end) for name in NAMES}
    asked = {**values, "steps": int(values["steps"])}
    if end == "min":
        asked |= {"momentum": 0.0}  # guidance is 1, which leaves nothing for it to do
    body = {"prompt": "a", "seconds": 0.64, "plan": True, "seed": 1, **asked}
    response = server.post(**body, response_format="latents")
    assert response.status_code == 200, response.text
    (tmp_path / "http.safetensors").write_bytes(response.content)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in body.items() if name != "plan"]
    command = [str(deployment.path), *flags, "--plan", "--out", str(tmp_path / "cli.safetensors")]
    assert CliRunner().invoke(cli.app, command).exit_code == 0
    for made in ("http", "cli"):
        assert read_metadata(tmp_path / f"{made}.safetensors").options == body
    assert json.loads(response.headers["X-Parameters"]) == body
    found, same = (read_latents(tmp_path / f"{made}.safetensors", 8, 64) for made in ("http", "cli"))
    np.testing.assert_array_equal(found, same)
    generation = LongGeneration(server.pipeline, parse_options(body, ranges(server)))
    request = generation.next_request()
    assert request is not None
    used = {"steps": request.steps, "shift": request.shift}
    used |= {name: getattr(request.parameters, name) for name in NAMES if hasattr(request.parameters, name)}
    assert len(used) == 6
    assert used == {name: pytest.approx(asked[name]) for name in used}
    assert generation.metadata().options == body


def test_a_session_refuses_with_the_seq_and_goes_on(server: Served) -> None:
    with player(server) as live:
        ready = live.open(controls={"bpm": 93.5, "guidance": 8})
        assert (ready.controls.values["bpm"], ready.controls.values["guidance"]) == (93.5, 8)
        live.send(type="set", seq=1, values={"guidance": 2, "bpm": 181})
        refused = live.receive_until(lambda item: isinstance(item, Problem))
        assert (refused.seq, refused.field, refused.fix) == (1, "values.bpm", "give 180.5")
        assert "is 181, this model takes 60 to 180.5" in refused.detail
        live.send(type="set", seq=2, values={"bpm": 180.5})
        assert live.receive_until(lambda item: isinstance(item, Applied)).seq == 2
        session = server.service.live_host().sessions()[0]
        assert session.id == ready.session


def test_every_schema_says_the_bundles_ranges(deployment: Deployment, server: Served, model: tickrt.Model) -> None:
    drawn = server.get("/v1/schema").json()["properties"]
    api = server.get("/openapi.json").json()["components"]["schemas"]["GenerationBody"]["properties"]
    with player(server) as live:
        controls = live.open().controls.json_schema
    table = AddressTable(controls)
    shown = " ".join(CliRunner().invoke(cli.app, [str(deployment.path), "--help"], terminal_width=400).output.split())
    python = model.options["properties"]
    for name in NAMES:
        taken = getattr(ranges(server), name)
        is_control = name in CONTROL_NAMES
        for schema in (drawn, api, python, *([controls["properties"]] if is_control else [])):
            number = schema[name].get("anyOf", [schema[name]])[0]
            assert (number["minimum"], number["maximum"]) == taken.ends
            assert number.get("x-usual") == (None if taken.usual is None else list(taken.usual))
        assert not is_control or table.find(name).description({name: None})[1:3] == list(taken.ends)
        assert str(taken) in shown
    assert "30<=x<=300" not in shown
    assert set(GenerationOptions.model_fields) > set(NAMES)
