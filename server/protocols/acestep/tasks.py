"""Tasks of ACE-Step's clients: generations in the background, and their audio until it is fetched or expires."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
import uuid
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from runtime.audio.formats import FORMATS
from runtime.base.errors import TickError
from server.asgi.problems import ProblemError, as_problem
from server.asgi.shares import Holding, Shares
from server.config import KIB, MIB
from server.protocols.acestep.fields import error_text
from server.routes.generation_job import GenerationJob
from server.routes.generation_stream import write_generation
from server.service.temporary_folder import TemporaryFolder

# Tasks that are known, most of them without audio any more.
MAX_TASKS = 1000
NUM_DURATIONS = 50
HEADER_BYTES = 64 * KIB
AUDIO_PATH = re.compile(r"/([0-9a-f-]{36})/([0-7])\.[a-z0-9]{3,4}")


@dataclass
class Task:
    """One task: its `jobs`, and what its results repeat (`facts`).

    `error`: why it failed, or why its audio is gone. `files`: paths of the audio of one that succeeded. `room`: for its
    audio, estimated until it is made; `place`: among the tasks that are known.
    """

    facts: dict[str, Any]
    jobs: Sequence[GenerationJob]
    room: Holding
    place: Holding
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    created_s: float = field(default_factory=time.time)
    seeds: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_running(self) -> bool:
        """Whether it has generations that have not ended."""
        return bool(self.jobs)

    @property
    def state(self) -> str:
        """running, failed or succeeded."""
        return "running" if self.is_running else "failed" if self.error else "succeeded"

    @property
    def progress(self) -> float:
        """The share of its steps that are done, by whole segments."""
        total = sum(job.generation.num_steps for job in self.jobs)
        left = sum(job.permit.remaining_steps for job in self.jobs)
        return 1 - left / total if total else 1.0


class TaskStore:
    """Runs tasks and keeps their audio as files of a temporary folder, `limit_bytes` and `keep_s` at most.

    Where there is no room, audio of those that ended first is removed, of the same client where it has its share; their
    tasks say so. Event loop's thread.
    """

    def __init__(self, limit_bytes: int, keep_s: float, client_share: float = 0.5) -> None:
        self._folder = TemporaryFolder("results")
        self._keep_s = keep_s
        self._bytes = Shares("keeps bytes of results", limit_bytes, client_share)
        self._places = Shares("knows tasks", MAX_TASKS, client_share)
        self._tasks: dict[str, Task] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._durations_s: deque[float] = deque(maxlen=NUM_DURATIONS)

    async def close(self) -> None:
        """End all tasks and remove the folder."""
        for running in self._running.values():
            running.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await run_in_threadpool(self._folder.close)

    def start(self, jobs: Sequence[GenerationJob], facts: dict[str, Any]) -> Task:
        """Run prepared jobs as a task, which releases their permits. Raises ProblemError where there is no room."""
        client, size_bytes = jobs[0].request.client, sum(_audio_bytes(job) for job in jobs)
        if size_bytes > self._bytes.limit:
            what = f"the audio may need {size_bytes / MIB:.0f} MiB, the limit is {self._bytes.limit / MIB:.0f} MiB"
            raise ProblemError(422, "results_too_large", what, fix="ask for less, or raise [server] results_bytes")
        room = self._bytes.take(client, size_bytes)
        try:
            task = Task(facts, jobs, room, self._places.take(client))
        except ProblemError:
            room.release()
            raise
        self._tasks[task.id] = task
        running = self._running[task.id] = asyncio.create_task(self._run(task))
        running.add_done_callback(lambda _: self._running.pop(task.id))
        return task

    def get(self, task_id: str) -> Task | None:
        """A task; None where it is not known, or not any more."""
        return self._tasks.get(task_id)

    def file(self, path: str) -> Path:
        """The file of a result's path. Raises ProblemError 404."""
        match = AUDIO_PATH.fullmatch(path)
        task = self.get(match[1]) if match else None
        if task is None or path not in task.files:
            what = task.error if task is not None else ""
            raise ProblemError(404, "audio_not_found", what or "there is no audio with this path, or not any more")
        return self._path(path)

    @property
    def num_running(self) -> int:
        """How many tasks have not ended."""
        return len(self._running)

    def counts(self) -> Counter[str]:
        """How many tasks are in each state."""
        return Counter(task.state for task in self._tasks.values())

    @property
    def mean_duration_s(self) -> float:
        """Of the last tasks; 0 before the first."""
        return sum(self._durations_s) / max(1, len(self._durations_s))

    async def _run(self, task: Task) -> None:
        paths = [
            f"/{task.id}/{index}{FORMATS[job.request.body.response_format].suffix}"
            for index, job in enumerate(task.jobs)
        ]
        error = "internal error, which the server's log has"
        try:
            async with asyncio.TaskGroup() as group:
                made = [
                    group.create_task(_make(job, self._path(path))) for job, path in zip(task.jobs, paths, strict=True)
                ]
            error = next((one for item in made if (one := item.result())), "")
        finally:
            self._end(task, error, paths)

    def _end(self, task: Task, error: str, paths: Sequence[str]) -> None:
        task.seeds, task.jobs = tuple(job.generation.seed for job in task.jobs), ()
        task.files = tuple(paths)
        self._durations_s.append(time.time() - task.created_s)
        task.place.touch()
        task.place.evict = partial(self._forget, task)
        if error:
            self._remove_audio(task, error)
            return
        task.room.touch()
        task.room.grow(sum(self._path(path).stat().st_size for path in paths) - task.room.size)
        removed = "the audio was removed to make room for that of other tasks"
        task.room.evict = partial(self._remove_audio, task, removed)
        expired = f"the audio was kept for {self._keep_s:g} s and then removed"
        asyncio.get_running_loop().call_later(self._keep_s, self._remove_audio, task, expired)

    def _forget(self, task: Task) -> None:
        self._remove_audio(task, "the task is too old")
        del self._tasks[task.id]

    def _remove_audio(self, task: Task, why: str) -> None:
        """Remove a task's files, if it has any left; `why` is its error from now on."""
        task.room.release()
        if task.files:
            task.files, task.error = (), why
            shutil.rmtree(self._path(f"/{task.id}"), ignore_errors=True)

    def _path(self, path: str) -> Path:
        return self._folder.path / path.removeprefix("/")


def _audio_bytes(job: GenerationJob) -> int:
    """How long its audio is as 16-bit samples: no format takes more, apart from its headers."""
    assert job.request.pipeline.codec is not None
    return HEADER_BYTES + 2 * job.request.pipeline.codec.channels * (job.generation.total_samples or 0)


async def _make(job: GenerationJob, path: Path) -> str:
    """Write a job's audio to a file and release its permit; returns why that failed, "" where it did not."""
    try:
        await write_generation(job, path)
    except (TickError, ProblemError) as error:
        return error_text(as_problem(error).document().model_dump())
    return ""
