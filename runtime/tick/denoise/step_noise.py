"""Noise of the next steps, drawn by a worker thread while the device runs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from runtime.requests.timesteps import Purpose, fill_noise
from runtime.tick.denoise.row_layout import LiveSlot
from runtime.tick.denoise.slot_state import SlotField


@dataclass(slots=True)
class _Ahead:
    """One slot's noise `[T, C]` that is being drawn for a step."""

    owner: LiveSlot
    step: int
    filled: Future[None]


class StepNoise:
    """Fills the rows `[T, C]` of field step_noise: the worker draws that of step k + 1 while step k runs. One thread
    asks. What it draws lies on the host where uploads start from; it is written once."""

    def __init__(self, worker: ThreadPoolExecutor, field: SlotField) -> None:
        self._worker, self._field = worker, field
        self._ahead: dict[int, _Ahead] = {}

    def write(self, live: LiveSlot) -> None:
        """Have the noise of a slot's next step in its row; waits for the worker where it is still drawing."""
        slot = live.slot
        ahead = self._ahead.pop(slot.index, None)
        if ahead is not None:
            # The tick thread waits until the worker has drawn it, which it began a tick ago.
            ahead.filled.result()
        if ahead is not None and ahead.owner is live and ahead.step == slot.step:
            self._field.mark(slot.index)
        elif live.work.step_noise is not None and slot.step == 0:
            self._field.write(slot.index, live.work.step_noise)  # [T, C]
        else:
            # The first step behind a resume or a change: the tick thread waits for the worker.
            self._draw(live, slot.step).result()
            self._field.mark(slot.index)

    def draw_next(self, live: LiveSlot) -> None:
        """Begin to draw the noise of the step after the one that was launched."""
        step = live.slot.step + 1
        if step < live.slot.steps:
            self._ahead[live.slot.index] = _Ahead(live, step, self._draw(live, step))

    def _draw(self, live: LiveSlot, step: int) -> Future[None]:
        row = self._field.host[live.slot.index]  # [T, C]
        return self._worker.submit(fill_noise, row, live.work.request.seed, Purpose.STEP, step)
