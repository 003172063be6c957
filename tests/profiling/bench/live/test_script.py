"""The script of a client: which controls it changes and when."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest
from helpers.live_clients import ready, scripted_server, silence

from profiling.bench.live import script as module
from profiling.bench.live.script import GUIDANCE, Script, control_times, run_client
from runtime.live.protocol.messages import ClientMessage, Close, Open, SetControls, SetPrompts
from runtime.live.protocol.server_messages import ServerMessage


def test_controls_have_a_random_phase_and_no_fixed_interval() -> None:
    script = Script("loop", 2.0, 600.0)
    first, second = (list(control_times(script, random.Random(index))) for index in (1, 2))
    intervals = [after - before for before, after in pairwise(first)]
    assert 0.0 <= first[0] < 2.0
    assert first[-1] < 600.0
    assert 1.5 <= min(intervals) < 1.6
    assert 2.4 < max(intervals) <= 2.5
    assert len(first) == pytest.approx(300, abs=10)
    assert first[0] != second[0]


def played(monkeypatch: pytest.MonkeyPatch, script: Script) -> tuple[list[ClientMessage], module.ClientRun]:
    """What a client with a short script sends, and its run."""
    monkeypatch.setattr(module, "WARM_UP_S", 0.01)
    monkeypatch.setattr(module, "SETTLE_S", 0.01)
    received: list[ClientMessage] = []

    def answer(message: ClientMessage) -> list[ServerMessage | bytes]:
        received.append(message)
        return [ready(), silence(0, 10_000)] if isinstance(message, Open) else []

    async def play() -> module.ClientRun:
        async with scripted_server(answer) as url:
            return await run_client(url, script, 3)

    run = asyncio.run(play())
    return received, run


def test_a_client_changes_guidance_and_prompt_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    received, run = played(monkeypatch, Script("extend", 0.02, 0.2))
    changes = [message for message in received if isinstance(message, SetControls | SetPrompts)]
    assert [message.seq for message in changes] == list(range(1, len(changes) + 1))
    assert [control.seq for control in run.controls] == [message.seq for message in changes]
    assert [control.kind for control in run.controls[:2]] == ["step_parameter", "generation_parameter"]
    values = [message.values["guidance"] for message in changes if isinstance(message, SetControls)]
    assert values[:3] == [GUIDANCE[0], GUIDANCE[1], GUIDANCE[0]][: len(values)]
    texts = [message.items[0].text for message in changes if isinstance(message, SetPrompts)]
    assert all(before != after for before, after in pairwise(texts))
    opened = received[0]
    assert isinstance(opened, Open)
    assert (opened.mode, opened.seed, isinstance(received[-1], Close)) == ("extend", 3, True)


def test_a_client_of_a_model_without_text_changes_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    (opened, *changes), run = played(monkeypatch, Script("loop", 0.02, 0.2, has_text=False))
    assert isinstance(opened, Open)
    assert opened.prompts == []
    values = [message.values for message in changes if isinstance(message, SetControls)]
    names = {"step_parameter": ["guidance"], "generation_parameter": ["seed"]}
    assert [*map(list, values)] == [names[control.kind] for control in run.controls]
    seeds = [value["seed"] for value in values if "seed" in value]
    assert len(set(seeds)) == len(seeds) > 0
