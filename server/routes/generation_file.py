"""A generation that is written to a file, for clients that fetch it later."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from runtime.base.errors import StoreError, TickError
from server.asgi.connection import first_completed
from server.asgi.problems import ProblemError, draining
from server.routes.generation_job import GenerationJob, Tally, outcome_of
from server.routes.generation_stream import chunks
from server.service.metrics import Outcome

logger = logging.getLogger("tickrt.server")


async def write_generation(job: GenerationJob, path: Path) -> None:
    """Write what a job makes to a file, and release its permit. Cancellation ends its ticks.

    Raises TickError, ProblemError; then a part of the file may be there.
    """
    with Tally(job.request.service.metrics) as tally:
        writing, aborted = asyncio.create_task(_write(job, path)), asyncio.create_task(job.permit.abort.wait())
        tally.outcome = Outcome.DRAINED
        try:
            await first_completed({writing, aborted})
            if writing.cancelled():
                raise draining()
            tally.outcome = Outcome.INTERNAL_ERROR
            writing.result()
            tally.outcome = Outcome.OK
        except (TickError, ProblemError) as error:
            if tally.outcome is not Outcome.DRAINED:
                tally.outcome = outcome_of(error)
            logger.warning("generation %s ended as %s: %s", job.request.id, tally.outcome, error.what)
            raise
        except asyncio.CancelledError:
            if not job.request.service.admission.is_draining:
                tally.outcome = Outcome.CANCELLED
            raise
        finally:
            job.permit.release()
            job.record_end(tally.outcome)


async def _write(job: GenerationJob, path: Path) -> None:
    async with aclosing(chunks(job)) as stream:
        async for chunk in stream:
            await run_in_threadpool(append_bytes, path, chunk)


def append_bytes(path: Path, chunk: bytes) -> None:
    """Append to a file, whose folder is made. Raises StoreError."""
    try:
        path.parent.mkdir(exist_ok=True, parents=True)
        with path.open("ab") as file:
            file.write(chunk)
    except OSError as error:
        raise StoreError(f"the audio cannot be stored: {error.strerror}", fix="free disk space") from None
