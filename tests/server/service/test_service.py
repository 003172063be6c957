"""The C library's heap: what is freed goes back to the system."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from conftest import Built
from helpers.backends import SIMULATED_RTX
from helpers.http_harness import TIMEOUT_S, Serve

from runtime.base.errors import ConfigError
from runtime.config.deployment import Deployment, Target
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.tick.loop.common_ticks import TICKS_PER_SHAPE
from server.asgi.problems import ProblemError
from server.config import ServerSettings
from server.service.lease import Lease
from server.service.service import (
    Service,
    keep_heap_small,
    open_session_store,
    open_source_files,
    run_at_once,
    warm_up_pipeline,
)
from server.service.sources import SourceFolder

MIB = 2**20
GLIBC = os.name == "posix" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
pytestmark = pytest.mark.anyio


def rss_mib() -> float:
    return psutil.Process().memory_info().rss / MIB


@pytest.mark.skipif(not GLIBC, reason="needs glibc")
@pytest.mark.anyio
async def test_what_is_freed_goes_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.service.service.TRIM_S", 0.0)
    blocks = [b"x" * 100_000 for _ in range(1000)]
    last = blocks[-1]  # above all others: without a trim they stay
    del blocks[:]
    before = rss_mib()

    task = asyncio.create_task(keep_heap_small())
    for _ in range(200):
        await asyncio.sleep(0.005)
        if before - rss_mib() > 50:
            break
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert before - rss_mib() > 50
    assert len(last) == 100_000


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    asyncio.run(asyncio.wait_for(keep_heap_small(), 1.0))


@pytest.fixture
def service() -> Service:
    """One that opens nothing."""
    return Service(lambda: pytest.fail("is not opened"), ServerSettings())


async def opened(error: Exception, **settings: Any) -> Service:
    """One whose pipeline cannot be opened, after it was started and closed."""

    def refuse() -> Pipeline:
        raise error

    service = Service(refuse, ServerSettings(**settings))
    with pytest.raises(ProblemError) as loading:
        service.ready_pipeline()
    assert (loading.value.code, loading.value.headers["Retry-After"]) == ("loading", "2")
    service.start()
    await service.opened()
    await asyncio.sleep(0)
    await service.close()
    return service


@pytest.mark.parametrize(
    ("error", "cause"),
    [(ConfigError("no deployment"), "no deployment"), (ValueError("two"), "two"), (LookupError(), "LookupError")],
)
async def test_a_pipeline_that_cannot_be_opened_is_a_failure_with_its_cause(error: Exception, cause: str) -> None:
    service = await opened(error)
    with pytest.raises(ProblemError) as failed:
        service.ready_pipeline()
    assert (failed.value.status, failed.value.code, failed.value.what) == (503, "failed", cause)


async def test_the_store_is_closed_with_the_service(tmp_path: Path, serve: Serve) -> None:
    await opened(ConfigError("no deployment"), state=tmp_path)
    assert serve(state=tmp_path).service.store is not None


def test_an_open_service_has_the_deployments_capacity(serve: Serve) -> None:
    service = serve(depth=2, queue=3, codec_workers=2).service
    assert service.admission.capacity == 5
    assert service.first_audio_tracker.size == 2
    codec = service.ready_pipeline().codec
    assert codec is not None
    assert codec.queue.size == 2


def test_a_reload_that_fails_keeps_the_engines(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve()
    before = served.post().content

    def refuse(*_: object) -> None:
        raise ConfigError("the engine is for another machine")

    monkeypatch.setattr(Pipeline, "reload", refuse)
    asyncio.run_coroutine_threadsafe(served.service.reload(), served.event_loop).result(TIMEOUT_S)
    assert "for another machine" in caplog.text
    is_the_same = served.post().content == before
    assert is_the_same


def test_warm_up_runs_one_step_and_raises_what_the_codec_raises(
    tiny: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_pipeline(tiny()) as pipeline:
        warm_up_pipeline(pipeline)
        assert pipeline.loop.stats().ticks == 1

        def decode(*_: object) -> None:
            raise ConfigError("the codec is broken")

        monkeypatch.setattr(pipeline.codec, "decode", decode)
        with pytest.raises(ConfigError, match="codec is broken"):
            warm_up_pipeline(pipeline)


async def test_common_ticks_are_made_before_ready_and_the_progress_is_told(
    tiny: Callable[..., Deployment], service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with open_pipeline(tiny()) as pipeline, caplog.at_level("INFO", "tickrt.server"):
        service._capture_common_ticks(pipeline)
        assert (pipeline.loop.stats().ticks, service.progress) == (0, "")
        on_gpu = pipeline.deployment.model_copy(update={"target": "tensorrt"})
        service._capture_common_ticks(replace(pipeline, deployment=on_gpu))
        assert pipeline.loop.stats().ticks >= len(pipeline.lengths.generations) * TICKS_PER_SHAPE
    last = len(pipeline.lengths.generations)
    assert f"{last} of {last} shapes" in service.loading().what
    assert f"frames, 32 tokens ({last} of {last})" in caplog.text


def test_kernels_of_common_ticks_are_compiled_before_ready_and_kept(
    built: Built, service: Service, tmp_path: Path
) -> None:
    shared = built(max_rows=16, backend=SIMULATED_RTX)
    shutil.copytree(shared.engine_folder(), tmp_path / "engines" / "tensorrt-rtx")
    deployment = shared.model_copy(update={"engines": tmp_path / "engines"})

    for start in ("first", "second"):
        with SIMULATED_RTX.running() as machine, open_pipeline(deployment) as pipeline:
            assert machine is not None
            service._capture_common_ticks(pipeline)
            (kept,) = (tmp_path / "engines").glob("*.kernels")
            assert kept.stat().st_size > 1000, "a server that is killed from here on has kept them"
            before = len(machine.compiled), machine.counters["fallback_executes"], machine.counters["instantiations"]
            run_at_once(pipeline, pipeline.common_ticks()[0].generations())
            after = len(machine.compiled), machine.counters["fallback_executes"], machine.counters["instantiations"]
            assert after == before, "compiled, executed with fallback kernels, captured"
            assert (before[0] == 0) == (start == "second")
            assert {thread.partition("_")[0] for _, thread in machine.compiled} <= {"kernels"}


@pytest.mark.parametrize(("target", "is_rehearsed"), [("tensorrt-rtx", True), ("cpu", False)])
async def test_the_planner_s_common_ticks_are_rehearsed_where_kernels_are_compiled(
    target: Target, is_rehearsed: bool, built: Built, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a rehearsal does: tests/runtime/tick/language/test_runner.py."""
    calls, done = list[str](), Future[None]()
    done.set_result(None)
    monkeypatch.setattr(Pipeline, "common_ticks", lambda pipeline: [])
    monkeypatch.setattr(Pipeline, "settle_kernels", lambda pipeline: pipeline.deployment.target == "tensorrt-rtx")
    with open_pipeline(built()) as pipeline:
        monkeypatch.setattr(pipeline.loop, "rehearse", lambda: (calls.append("rehearse"), done)[1])
        on_target = pipeline.deployment.model_copy(update={"target": target})
        service._capture_common_ticks(replace(pipeline, deployment=on_target))
    assert calls == ["rehearse"] * is_rehearsed


OTHER = Lease("two", "127.0.0.1:8002", "", "ready", 2, 3, 0.0)
DIRECT = replace(OTHER, url="http://127.0.0.1:8002")  # clients reach it themselves, and not through an edge


async def test_a_server_that_drains_refuses_what_an_edge_can_send_on(service: Service) -> None:
    service.membership.others = [replace(OTHER, state="full")]
    service.check_draining()
    service.admission.drain()
    with pytest.raises(ProblemError) as refused:
        service.check_draining()
    assert (refused.value.code, refused.value.status) == ("draining", 503)
    service.membership.others = [DIRECT, replace(OTHER, state="draining")]
    service.check_draining()


async def test_a_full_server_refuses_a_session_that_an_edge_can_send_on(service: Service) -> None:
    full = replace(OTHER, sessions=3)
    for wait_s, others in ((None, [OTHER]), (0.0, [OTHER]), (0.5, [full]), (0.5, [DIRECT]), (0.5, [])):
        service.host = None if wait_s is None else cast(Any, SimpleNamespace(session_wait_s=wait_s))
        service.membership.others = others
        service.check_room()
    service.membership.others = [full, OTHER]
    with pytest.raises(ProblemError) as refused:
        service.check_room()
    assert (refused.value.code, refused.value.status) == ("sessions_full", 503)


async def test_a_generation_that_waits_is_sent_where_it_waits_less() -> None:
    waiting, idle = Lease("two", "two:1", "http://two", "ready", 0, 3, 9.0), Lease("three", "", "", "ready", 0, 3, 0.0)
    service = Service(lambda: pytest.fail("is not opened"), ServerSettings(client_in_flight=0))
    service.admission.capacity, service.admission.ticks_s = 1, lambda num_steps: num_steps / 10
    shorter = [replace(waiting, queue_wait_s=7.9), idle]
    service.membership.others = shorter
    assert service.generation_elsewhere() is None, "there is a place here"
    service.admission.admit("a").remaining_steps = 80
    assert service.generation_elsewhere() == "http://two"
    for others in ([waiting, idle], []):
        service.membership.others = others
        assert service.generation_elsewhere() is None


@pytest.mark.parametrize(("limit", "is_limited"), [(0, False), (1, True), (None, True)])
async def test_one_address_gets_a_share_of_the_places_where_clients_are_limited(
    limit: int | None, is_limited: bool
) -> None:
    settings = ServerSettings(client_in_flight=limit, max_connections=4)
    places = Service(lambda: pytest.fail("is not opened"), settings).places
    for _ in range(2 if is_limited else 4):
        places.take("a")
    with pytest.raises(ProblemError) as refused:
        places.take("a")
    assert refused.value.code == ("too_many_requests" if is_limited else "busy")


async def test_a_lease_says_what_the_server_has_and_takes() -> None:
    def leases(**settings: Any) -> list[Lease]:
        chosen = ServerSettings(max_sessions=5).model_copy(update=settings)
        service = Service(lambda: pytest.fail("is not opened"), chosen)
        host: Any = SimpleNamespace(session_wait_s=0.0, stats=lambda: SimpleNamespace(open=5, connected=2))
        service.admission.capacity, service.admission.ticks_s = 4, lambda num_steps: num_steps / 10
        found = [service.lease()]
        service.pipeline = cast(
            Any, SimpleNamespace(bundle=SimpleNamespace(name="demo"), identity=SimpleNamespace(precision="fp32"))
        )
        service.admission.admit("a").remaining_steps = 15
        found.append(service.lease())
        service.host = host
        found.append(service.lease())
        host.session_wait_s = 0.25
        found.append(service.lease())
        service.admission.drain()
        return [*found, service.lease()]

    loading, without, ready, full, draining = leases(host="10.0.0.7", port=8001)
    assert loading == Lease("", "10.0.0.7:8001", "", "loading", 0, 5, 0.0)
    assert without == replace(loading, state="ready", queue_wait_s=1.5, model="demo", precision="fp32")
    assert ready == replace(without, sessions=2)
    assert full == replace(ready, state="full", session_wait_s=0.25)
    assert draining == replace(full, state="draining")
    named = leases(replica_address="here:1", replica_url="http://here")[0]
    assert (named.address, named.url) == ("here:1", "http://here")


async def test_a_model_without_a_codec_is_warmed_up_by_its_steps_alone(built: Built, tmp_path: Path) -> None:
    with open_pipeline(built(codec=False, text_encoder=False)) as pipeline:
        assert pipeline.codec is None
        service = Service(lambda: pipeline, ServerSettings(codec_workers=2, state=tmp_path))
        service.start()
        await service.opened()
        await service.close()
        assert service.failure is None
        assert pipeline.loop.stats().ticks == 1


def test_sessions_and_sources_are_stored_where_the_settings_say(tmp_path: Path) -> None:
    assert open_session_store(ServerSettings()) is None
    store = open_session_store(ServerSettings(state=tmp_path / "state"))
    assert store is not None
    with store, pytest.raises(ConfigError, match="in use by another server"):
        open_session_store(ServerSettings(state=tmp_path / "state"))
    files = open_source_files(ServerSettings(state=tmp_path))
    assert isinstance(files, SourceFolder)
    assert files.path == tmp_path / "sources"


def test_redis_without_its_package_is_a_config_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "runtime.live.storage.redis_store", None)
    with pytest.raises(ConfigError) as error:
        open_session_store(ServerSettings(redis="redis://127.0.0.1"))
    assert "tickrt[redis]" in error.value.fix
