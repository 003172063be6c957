from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from helpers.http_harness import GENERATIONS, TIMEOUT_S, Serve, Served, eventually, problem
from helpers.panics import panic
from helpers.scripted_sessions import Client

from runtime.base.errors import EngineDeadError
from runtime.commands.terminal import EXIT_ENGINE
from runtime.config.deployment import Deployment
from runtime.live.protocol.messages import Open
from runtime.live.protocol.server_messages import Closed
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from server.app import create_app
from server.config import ServerSettings
from server.service.service import not_live, not_ready


def test_a_warm_server_is_live_and_ready(served: Served) -> None:
    assert served.get("/health/live").json() == {"status": "live", "tick_age_s": None}
    ready = served.get("/health/ready").json()
    assert ready == {
        "status": "ready",
        "model": "tiny",
        "slots_active": 0,
        "slots_capacity": 4,
        "queue_depth": 0,
        "live_sessions": 0,
    }
    assert served.metrics()["tickrt_ready"] == 1


def test_open_live_sessions_are_counted_until_the_server_drains(serve: Serve) -> None:
    served = serve(admin_key="k")
    for _ in range(2):
        served.service.live_host().open(Open(), Client())
    with served.client() as client:
        assert client.get("/health/ready").json()["live_sessions"] == 2
        refused = client.post("/admin/drain", headers={"Authorization": "Bearer k"})
        assert (refused.status_code, refused.json()["code"]) == (403, "admin_key_needed")
        assert client.get("/health/ready").status_code == 200
        draining = client.post("/admin/drain", headers={"X-Admin-Key": "k"})
        with suppress(httpx.ConnectError):  # it listens no more, soon after
            problem(client.get("/health/ready"), 503, "draining")
    assert (draining.status_code, draining.json()) == (202, {"status": "draining", "live_sessions": 2})


def test_a_loading_server_is_live_and_not_ready(tiny: Callable[..., Deployment]) -> None:
    loaded = threading.Event()

    def slow() -> Pipeline:
        loaded.wait(TIMEOUT_S)
        pipeline = open_pipeline(tiny())
        pipeline.start()
        return pipeline

    with TestClient(create_app(slow, ServerSettings()), base_url="http://localhost") as client:
        assert client.get("/health/live").status_code == 200
        for path in ("/health/ready", "/v1/models"):
            answer = client.get(path)
            assert int(answer.headers["retry-after"]) >= 1
            assert problem(answer, 503)["code"] == "loading"
        problem(client.post(GENERATIONS, json={"prompt": "a"}), 503, "loading")
        assert client.get("/openapi.json").status_code == 200
        loaded.set()
        eventually(lambda: client.get("/health/ready").status_code == 200)
        assert client.post(GENERATIONS, json={"prompt": "a"}).status_code == 200


def test_missing_engines_are_the_cause_with_the_command_that_builds_them(
    tiny: Callable[..., Deployment], tmp_path: Path
) -> None:
    deployment = tiny().model_copy(update={"engines": tmp_path})
    with TestClient(
        create_app(lambda: open_pipeline(deployment), ServerSettings()), base_url="http://localhost"
    ) as client:
        eventually(lambda: client.get("/health/live").status_code == 503)
        for path in ("/health/live", "/health/ready", "/v1/models"):
            document = problem(client.get(path), 503, "failed")
            assert "is not built" in document["detail"]
            assert "tickrt-build" in document["fix"]


def test_a_failed_warm_up_is_the_cause(tiny: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    def broken() -> Pipeline:
        pipeline = open_pipeline(tiny())
        assert pipeline.codec is not None

        def decode(*_: object) -> None:
            raise EngineDeadError("the codec is broken")

        monkeypatch.setattr(pipeline.codec, "decode", decode)
        pipeline.start()
        monkeypatch.setattr(pipeline.loop, "close", lambda close=pipeline.loop.close: closed.append(close()))
        return pipeline

    with TestClient(create_app(broken, ServerSettings()), base_url="http://localhost") as client:
        eventually(lambda: client.get("/health/live").status_code == 503)
        assert problem(client.get("/health/ready"), 503, "failed")["detail"] == "the codec is broken"
    assert len(closed) == 1


def test_a_hanging_tick_loop_is_not_live_until_it_runs_again(serve: Serve) -> None:
    served = serve(depth=1, tick_timeout_s=0.2)
    served.pause()
    with ThreadPoolExecutor(1) as pool, served.client() as client:
        pending = pool.submit(served.post)
        eventually(lambda: client.get("/health/live").status_code == 503)
        assert "'tick'" in problem(client.get("/health/ready"), 503, "tick_overdue")["detail"]
        eventually(lambda: served.server.exit_code != 0)
        served.resume()
        assert pending.result().status_code == 200
        eventually(lambda: client.get("/health/live").status_code == 200)
        eventually(lambda: served.server.exit_code == 0)


def test_a_machine_whose_ticks_take_long_is_live_meanwhile(serve: Serve) -> None:
    served = serve(depth=1, tick_timeout_s=0.05)
    served.pipeline.loop.thread.heartbeat.usual_s = 1000.0
    served.pause()
    with ThreadPoolExecutor(1) as pool, served.client() as client:
        pending = pool.submit(served.post)
        eventually(lambda: served.pipeline.loop.thread.silent_s > 0.1)
        assert client.get("/health/live").status_code == 200
        served.resume()
        assert pending.result().status_code == 200


def test_a_worker_that_hangs_is_not_live_until_it_goes_on(serve: Serve) -> None:
    served, gate = serve(thread_timeout_s=0.1), threading.Event()
    assert served.pipeline.codec is not None
    served.pipeline.codec.queue.submit(gate.wait)
    with served.client() as client:
        eventually(lambda: client.get("/health/live").status_code == 503)
        assert "'codec-decode'" in problem(client.get("/health/live"), 503, "codec_decode_overdue")["detail"]
        gate.set()
        eventually(lambda: client.get("/health/live").status_code == 200)


def test_an_idle_loop_is_live(serve: Serve) -> None:
    served = serve(tick_timeout_s=0.1)
    served.post()
    eventually(lambda: served.pipeline.loop.stats().is_idle)
    time.sleep(0.2)
    assert served.get("/health/live").json()["tick_age_s"] is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_tick_loop_ends_all_generations_and_the_process(serve: Serve) -> None:
    served = serve(depth=1, queue=2)
    served.pause()
    with ThreadPoolExecutor(3) as pool:
        pending = [pool.submit(served.post) for _ in range(3)]
        eventually(lambda: served.service.admission.num_pending == 3)

        def die(_: object) -> None:
            raise RuntimeError("the device fell off the bus")

        served.pipeline.loop.observers.append(die)
        served.resume()
        for future in pending:
            problem(future.result(), 503)
    eventually(lambda: served.server.exit_code == EXIT_ENGINE)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_thread_of_live_sessions_ends_the_process(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    host = served.service.host
    assert host is not None
    assert not_live(served.service) is None
    monkeypatch.setattr(host.loop, "timeout_s", panic)
    client = Client()
    host.open(Open(), client)
    eventually(lambda: served.server.exit_code == EXIT_ENGINE)
    for problem_of in (not_live, not_ready):
        error = problem_of(served.service)
        assert error is not None
        assert error.document().code in ("engine_dead", "draining")  # it drains, to end
    assert [message.reason for message in client.of(Closed)] == ["engine"]
