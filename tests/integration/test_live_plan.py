"""Live sessions that play by a plan of a tiny planner: over WebSocket and HTTP, in Python, and after kill -9."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.http_harness import Served, serving
from helpers.killed_server import killed_server
from helpers.live_player import Player, is_audio, player
from helpers.live_sound import Heard, Sound
from websockets.sync.client import connect

from runtime.config.deployment import Deployment
from runtime.live.hosting.host import SessionHost
from runtime.live.protocol.messages import Ack
from runtime.live.protocol.server_messages import Applied, Plan, Problem, Ready
from runtime.live.storage.sqlite_store import open_sqlite_store
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.pipeline.songs.plan import SongPlan
from runtime.requests.options import GenerationOptions
from tickrt.model import Model

TIMEOUT_S = 60.0
HOP = 320
MARGIN = 2 * HOP  # Samples: the codec's margin of a frame, from any place in a frame.


@pytest.fixture(scope="module")
def deployment(built: Built) -> Deployment:
    return built(planner={"capacity": 1024, "plan": True})


@pytest.fixture(scope="module")
def served(deployment: Deployment) -> Iterator[Served]:
    with serving(deployment) as running:
        yield running


@contextmanager
def planned(served: Served, **members: Any) -> Iterator[Player]:
    with player(served) as client:
        client.open(mode="extend", seed=5, prompts=[{"text": "calm"}], **members)
        yield client
        client.send(type="close")


def is_plan(item: object) -> bool:
    return isinstance(item, Plan)


def test_a_session_plays_by_a_plan_which_can_be_edited(served: Served) -> None:
    with planned(served) as client:
        assert client.ready.plan.kinds == ["verse", "chorus", "break", "outro"]
        plan = client.receive_until(is_plan)
        client.receive_until(is_audio)
        assert plan.sections[0].start_s == 0.0
        assert {section.kind for section in plan.sections} <= set(client.ready.plan.kinds)
        edited = {"kind": "break", "layers": ["bass"], "bars": 2}
        client.send(type="set_plan", seq=1, start_s=plan.sections[-1].start_s, sections=[edited])
        newer = client.receive_until(
            lambda item: is_plan(item) and any(each.start_s == plan.sections[-1].start_s for each in item.sections)
        )
        (section,) = (each for each in newer.sections if each.start_s == plan.sections[-1].start_s)
        assert (section.kind, section.layers, section.bars) == ("break", ["bass"], 2)
        if not any(isinstance(message, Applied) and message.seq == 1 for message in client.messages):
            client.receive_until(lambda item: isinstance(item, Applied) and item.seq == 1)
        client.send(type="set_plan", seq=2, start_s=0.0, codes=[1])
        refused = client.receive_until(lambda item: isinstance(item, Problem))
        assert (refused.seq, refused.field) == (2, "start_s")
        card = served.get(f"/v1/sessions/{client.ready.session}").json()
        assert section.model_dump() in card["plan"]["sections"]
    assert served.metrics()["tickrt_planner_tokens_total"] > 0


def test_a_session_without_a_plan(served: Served) -> None:
    with planned(served, plan=False) as client:
        assert client.ready.plan is None
        client.receive_until(is_audio)
        client.send(type="get_plan")
        assert client.receive_until(lambda item: isinstance(item, Problem)).code == "invalid_request"
        assert not any(is_plan(message) for message in client.messages)


def test_the_plan_in_python(deployment: Deployment) -> None:
    pipeline = open_pipeline(deployment)
    pipeline.start()
    with Model(pipeline) as model, model.live("calm", mode="extend", seed=5) as live:
        live.read(1000)
        plan = live.plan
        last = plan.sections[-1]
        live.set_plan(last.start_s, [{"kind": "chorus", "layers": ["drums"], "bars": 4}])
        for _ in range(200):
            live.read(800)
            kinds = {section.start_s: (section.kind, section.bars) for section in live.plan.sections}
            if kinds.get(last.start_s) == ("chorus", 4):
                break
        assert kinds[last.start_s] == ("chorus", 4)


class Listener(Heard):
    """Knows the codes of what it plays."""

    @property
    def codes(self) -> dict[int, list[int]]:
        """Those of complete sections, in the newest plan."""
        plans = [message for message in self.messages if isinstance(message, Plan)]
        return codes_by_index(plans[-1]) if plans else {}


def codes_by_index(plan: Plan) -> dict[int, list[int]]:
    return {section.index: section.codes for section in plan.sections if section.codes is not None}


@pytest.mark.shipped
def test_after_kill_9_the_same_codes_follow_and_what_was_heard_stays(deployment: Deployment, tmp_path: Path) -> None:
    with killed_server(deployment.path, tmp_path) as url, connect(f"ws{url[4:]}/v1/live", proxy=None) as websocket:
        client = Player(websocket)
        client.open(mode="extend", seed=5, prompts=[{"text": "calm"}], format="f32")
        before = codes_by_index(client.receive_until(lambda item: is_plan(item) and codes_by_index(item)))
        client.receive_until(lambda item: is_audio(item) and item.end_sample > 12_000)
    sound = Sound(0)
    for chunk in client.chunks:
        sound.write(chunk)
    with open_pipeline(deployment) as pipeline:
        restored, stored_end = resumed(pipeline, tmp_path, client.ready, max(before) + 2)
        expected = codes_of_the_plan(pipeline, max(restored.codes))
    assert before.items() <= expected.items()
    assert restored.codes.items() <= expected.items()
    # What came after it was stored may have been made before its plan was there, where the planner was late.
    begin, end = restored.sound.begin, min(client.chunks[-1].start_sample, stored_end) - MARGIN
    assert restored.sound.end > sound.end
    assert begin >= end or np.array_equal(restored.sound.part(begin, end)[0], sound.part(begin, end)[0])


def resumed(pipeline: Pipeline, state: Path, ready: Ready, last: int) -> tuple[Listener, int]:
    """The client of a stored session, which has played until it knows the codes of section `last`; and the sample that
    the stored canvas ends at.
    """
    listener, until_s = Listener(), time.monotonic() + TIMEOUT_S
    with open_sqlite_store(state) as store, SessionHost(pipeline, store=store) as host:
        snapshot = store.load(ready.session)
        parts = [part for placement in snapshot.meta["timeline"] for part in placement["parts"]]
        end_frame = max((part[-3] for part in parts), default=0)
        host.resume(ready.session, ready.resume_token, listener)
        while last not in listener.codes:
            assert time.monotonic() < until_s, listener.messages[-5:]
            host.post(ready.session, Ack(playhead_sample=listener.sound.end))
            time.sleep(0.02)
    return listener, end_frame * HOP


def codes_of_the_plan(pipeline: Pipeline, last: int) -> dict[int, list[int]]:
    """The codes of the same plan up to section `last`, made without interruption."""
    assert pipeline.planner is not None
    form = SongPlan(pipeline.planner, GenerationOptions(prompt="calm"), 5)
    found: dict[int, list[int]] = {}
    frame = 0
    while last not in found:
        form.hints(frame, 50)
        frame += 50
        found |= {section.index: list(section.codes) for section in form.sections if section.codes is not None}
    return found
