from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.acestep_client import AceStepClient, refusal, wrapped
from helpers.http_harness import Served, eventually

from runtime.audio.codec import Codec
from runtime.base.errors import EngineError
from server.asgi.problems import ProblemError
from server.asgi.shares import Shares
from server.protocols.acestep import tasks as acestep_tasks
from server.protocols.acestep.tasks import Task, TaskStore

Serve = Callable[..., Served]
SHORT = {"prompt": "a", "batch_size": 1, "audio_duration": 0.5, "audio_format": "wav"}


def folder_path(served: Served) -> Path:
    return served.app.state.acestep._folder.path  # type: ignore[no-any-return]


def folder_of(served: Served) -> list[Path]:
    return list(folder_path(served).iterdir())


def test_a_task_that_fails_says_why(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()

    def failing(codec: Codec, *arguments: Any) -> Any:
        raise EngineError("the codec is broken")

    with served.client() as http, monkeypatch.context() as patch:
        patch.setattr(Codec, "_decode", failing)
        client = AceStepClient(http)
        (result,) = client.wait(client.release(json=SHORT), status=2)
        assert (result["error"], result["file"], result["stage"]) == ("the codec is broken", "", "failed")
        patch.undo()
        assert client.wait(client.release(json=SHORT))
    counted = served.metrics()
    assert counted["tickrt_generations_total{outcome=engine_error}"] == 1
    assert counted["tickrt_generations_total{outcome=ok}"] == 1
    assert counted["tickrt_generations_in_flight"] == 0


def test_audio_that_is_not_fetched_is_removed_in_time_and_for_room(serve: Serve) -> None:
    served = serve(results_bytes=2**20, result_keep_s=600.0)
    long = {**SHORT, "audio_duration": 20, "inference_steps": 1}  # 640 kB
    with served.client() as http:
        client = AceStepClient(http)
        assert "the limit is 1 MiB" in refusal(http.post("/release_task", json={**long, "audio_duration": 60}), 422)
        first, second = (client.wait(client.release(json=long)) for _ in range(2))
        assert len(client.audio(second[0])) > 600_000
        assert "make room" in refusal(http.get(first[0]["file"]), 404)
        assert len(folder_of(served)) == 1
        served.pause()
        running = client.release(json=long)
        assert "keeps bytes of results" in refusal(http.post("/release_task", json=long), 503)
        served.resume()
        client.wait(running)
    folder = folder_path(served)
    served.server.drain()
    eventually(lambda: not folder.exists())


def test_audio_expires_and_its_task_says_so(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acestep_tasks, "MAX_TASKS", 2)
    served = serve(result_keep_s=0.05)
    with served.client() as http:
        client = AceStepClient(http)
        task_id = client.release(json=SHORT)
        eventually(lambda: client.query(task_id)[0]["status"] == 2)
        assert "kept for 0.05 s" in client.wait(task_id, status=2)[0]["error"]
        assert folder_of(served) == []
        for _ in range(2):
            later = client.release(json=SHORT)
            eventually(lambda later=later: client.query(later)[0]["status"] == 2)
        assert "not any more" in client.wait(task_id, status=2)[0]["error"]
        assert wrapped(http.get("/v1/stats"))["jobs"]["total"] == 2


def test_no_task_is_taken_while_the_server_drains(serve: Serve) -> None:
    served = serve(depth=1, drain_s=60.0)
    served.pause()
    with served.client() as http:
        AceStepClient(http).release(json=SHORT)
        eventually(lambda: len(served.service.admission.permits) == 1)
        served.server.drain()
        assert "shutting down" in refusal(http.post("/release_task", json=SHORT), 503)
    served.resume()


def test_a_task_ends_when_the_server_stops(serve: Serve) -> None:
    served = serve(depth=1, drain_s=0.2)
    served.tick_s = 0.05
    metrics, folder = served.service.metrics, folder_path(served)
    with served.client() as http:
        AceStepClient(http).release(json={**SHORT, "audio_duration": 60})
        eventually(lambda: len(served.service.admission.permits) == 1)
        served.server.drain()
    eventually(lambda: not served.service.admission.permits)
    eventually(lambda: not folder.exists())
    drained = metrics.registry.get_sample_value("tickrt_generations_total", {"outcome": "drained"})
    assert drained == metrics.registry.get_sample_value("tickrt_generations_started_total") == 1


# Room for results, without a server.


class Job:
    """A job whose audio is `size_bytes` long and made when it is told to be."""

    def __init__(self, size_bytes: int) -> None:
        self.go, self.size_bytes = asyncio.Event(), size_bytes
        pipeline = SimpleNamespace(codec=SimpleNamespace(channels=1))
        self.request = SimpleNamespace(pipeline=pipeline, body=SimpleNamespace(response_format="wav"), client="me")
        self.generation = SimpleNamespace(total_samples=size_bytes // 2, seed=7, num_steps=1)


def in_store(limit_bytes: int, steps: Callable[[TaskStore], Awaitable[None]], patch: pytest.MonkeyPatch) -> None:
    async def make(job: Any, path: Path) -> str:
        await job.go.wait()
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(job.size_bytes))
        return ""

    async def run() -> None:
        store = TaskStore(limit_bytes, 600.0, 0)
        try:
            async with asyncio.timeout(60):
                await steps(store)
        finally:
            await store.close()

    patch.setattr(acestep_tasks, "_make", make)
    patch.setattr(acestep_tasks, "HEADER_BYTES", 0)
    asyncio.run(run())


def start(store: TaskStore, size_bytes: int) -> tuple[Task, Job]:
    job: Any = Job(size_bytes)
    return store.start([job], {}), job


async def end(task: Task, job: Job) -> None:
    job.go.set()
    while task.is_running:
        await asyncio.sleep(0)


def test_what_ended_first_makes_room_also_where_it_was_asked_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(store: TaskStore) -> None:
        slow, quick = start(store, 300), start(store, 450)
        await end(*quick)
        await end(*slow)
        start(store, 576)
        assert slow[0].files
        assert not quick[0].files
        assert "make room" in quick[0].error

    in_store(1000, steps, monkeypatch)


def test_audio_that_just_fits_removes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(store: TaskStore) -> None:
        first = start(store, 400)
        await end(*first)
        second = start(store, 600)
        await end(*second)
        assert first[0].files
        assert second[0].files
        whole = start(store, 1000)
        await end(*whole)
        assert [bool(task.files) for task, _ in (first, second, whole)] == [False, False, True]
        with pytest.raises(ProblemError) as caught:
            start(store, 1002)
        assert caught.value.code == "results_too_large"
        assert whole[0].files

    in_store(1000, steps, monkeypatch)


def test_a_task_that_is_removed_for_its_age_makes_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acestep_tasks, "MAX_TASKS", 2)

    async def steps(store: TaskStore) -> None:
        oldest, newer = start(store, 300), start(store, 300)
        await end(*oldest)
        await end(*newer)
        latest = start(store, 300)
        assert [task.error for task, _ in (oldest, newer, latest)] == ["the task is too old", "", ""]
        assert newer[0].files

    in_store(1000, steps, monkeypatch)


def test_tasks_are_counted_while_they_run_and_timed_when_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(store: TaskStore) -> None:
        assert (store.num_running, store.mean_duration_s) == (0, 0.0)
        monkeypatch.setattr(acestep_tasks, "time", SimpleNamespace(time=lambda: 100.0))
        (slow, slow_job), (quick, quick_job) = start(store, 2), start(store, 2)
        slow.created_s, quick.created_s = 40.0, 90.0
        assert (store.num_running, store.counts()) == (2, {"running": 2})
        await end(slow, slow_job)
        while store.num_running > 1:
            await asyncio.sleep(0)
        assert store.counts() == {"running": 1, "succeeded": 1}
        assert store.mean_duration_s == 60.0
        await end(quick, quick_job)
        assert store.mean_duration_s == 35.0

    in_store(1000, steps, monkeypatch)


def test_progress_is_the_share_of_all_steps_that_are_done() -> None:
    jobs: Any = [
        SimpleNamespace(generation=SimpleNamespace(num_steps=total), permit=SimpleNamespace(remaining_steps=left))
        for total, left in ((10, 2), (30, 30))
    ]
    held = Shares("keeps results", 2).take("me")
    assert Task({}, jobs, held, held).progress == pytest.approx(8 / 40)
    assert Task({}, (), held, held).progress == 1.0
