"""What a client of the live bench does: it changes a step parameter and a generation parameter in turn."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from profiling.bench.live.client import LiveClient, live_client
from runtime.live.protocol.messages import AudioFormat, Close, LivePrompt, Mode, Open, SetControls, SetPrompts

Kind = Literal["step_parameter", "generation_parameter"]
KINDS: tuple[Kind, Kind] = ("step_parameter", "generation_parameter")
# Time to play before the first control, and after the last one, so that it can be played in full.
WARM_UP_S = 2.0
SETTLE_S = 3.0
GUIDANCE = (2.0, 5.0)
PROMPTS = ("calm pads in D minor", "fast drums and bass", "bright arpeggio in C major", "slow dark melody and bass")


@dataclass(frozen=True)
class Script:
    """The mode of the session, the mean time between two controls, and for how long controls are changed.

    plan: whether it plays by a plan; None: as the server's default is. has_text: whether the model takes prompts; of
    one that takes none the seed is the generation parameter.
    """

    mode: Mode
    interval_s: float
    change_s: float
    plan: bool | None = None
    format: AudioFormat = "s16"
    has_text: bool = True
    warm_up_s: float = WARM_UP_S
    settle_s: float = SETTLE_S

    def shape(self) -> dict[str, Any]:
        """The properties of a result that are known before it is played."""
        return {"mode": self.mode, "interval_s": self.interval_s, "minutes": round(self.change_s / 60.0, 3)}

    @property
    def duration_s(self) -> float:
        """From the first sound to the end of the session."""
        return self.warm_up_s + self.change_s + self.settle_s


@dataclass(frozen=True, slots=True)
class Control:
    """One control that was changed, and when."""

    kind: Kind
    seq: int
    sent_s: float


@dataclass(frozen=True)
class ClientRun:
    """What one client did and what arrived."""

    controls: list[Control]
    client: LiveClient


Beside = Callable[[LiveClient], Awaitable[None]]


async def idle(client: LiveClient) -> None:
    """Nothing beside the script."""


async def run_client(url: str, script: Script, index: int, beside: Beside = idle) -> ClientRun:
    """Play the script in a session of its own. Raises SessionRefusedError, TickError.

    beside: runs while the script plays, and is cancelled at its end.
    """
    rng = random.Random(index)
    prompts = [LivePrompt(text=PROMPTS[index % len(PROMPTS)])] if script.has_text else []
    opening = Open(mode=script.mode, prompts=prompts, seed=index, plan=script.plan, format=script.format)
    controls: list[Control] = []
    async with live_client(url, opening) as client, running(beside(client)):
        begin_s = time.monotonic() + script.warm_up_s
        for seq, at_s in zip(count(1), control_times(script, rng), strict=False):
            await asyncio.sleep(begin_s + at_s - time.monotonic())
            controls.append(await change(client, script, seq, index))
        await asyncio.sleep(begin_s + script.change_s + script.settle_s - time.monotonic())
        await client.send(Close())
    return ClientRun(controls, client)


@asynccontextmanager
async def running(work: Awaitable[None]) -> AsyncIterator[None]:
    """Work runs during the block; its error is raised at the end."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def control_times(script: Script, rng: random.Random) -> Iterator[float]:
    """Seconds from the first to the last control: a random phase, then intervals that vary by a quarter."""
    at_s = rng.uniform(0.0, script.interval_s)
    while at_s < script.change_s:
        yield at_s
        at_s += script.interval_s * rng.uniform(0.75, 1.25)


async def change(client: LiveClient, script: Script, seq: int, index: int) -> Control:
    """Change the next control: guidance, then the prompt, or the seed where there is none."""
    changes, sent_s = (seq - 1) // 2, time.monotonic()
    if seq % 2:
        await client.send(SetControls(seq=seq, values={"guidance": GUIDANCE[changes % len(GUIDANCE)]}))
        return Control("step_parameter", seq, sent_s)
    if script.has_text:
        text = PROMPTS[(index + 1 + changes) % len(PROMPTS)]
        await client.send(SetPrompts(seq=seq, items=[LivePrompt(text=text)]))
    else:
        await client.send(SetControls(seq=seq, values={"seed": seq}))
    return Control("generation_parameter", seq, sent_s)
