"""All slots of one length T: their state, their rows, and the bound executions of each shape they have had."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment
from runtime.denoise.ablations import techniques_of
from runtime.denoise.launch_cache import Launch, LaunchCache, LaunchKey
from runtime.denoise.row_buffers import RowBuffers
from runtime.denoise.slot_fields import FIELDS
from runtime.denoise.slot_state import SlotState
from runtime.denoise.step_binding import widths, writes
from runtime.devices.device import Device, Event, Tensor
from runtime.engines.engine import Engine, EngineSet, Execution, smallest_superset
from runtime.scheduling.batch import BucketBatch


class LengthBucket:
    """Owns what slots of one length need on the device. Written by the tick thread alone."""

    def __init__(
        self,
        device: Device,
        launches: LaunchCache,
        engines: EngineSet,
        bundle: Bundle,
        deployment: Deployment,
        frames: int,
    ) -> None:
        self._device, self._stream, self._engines = device, launches.stream, engines
        self._bundle, self._deployment = bundle, deployment
        self._launches = launches
        self._generation = 0
        self.frames = frames
        self._techniques = techniques_of(deployment.runtime)
        self._slot_count = deployment.runtime.depth
        self._channels = bundle.latents.channels
        self.state = SlotState(
            device, self._stream, slot_count=self._slot_count, frames=frames, channels=self._channels,
            field_kind=self._techniques.field,
        )  # fmt: skip
        self._rows = self._row_buffers(2 * self._slot_count)
        self._variants: dict[tuple[str, frozenset[str]], frozenset[str]] = {}
        self._masked: Tensor | None = None
        flags_kept = deployment.runtime.ticks_in_flight + 1
        self._steps = self._techniques.steps(device, self._stream, self.state, flags_kept)

    def prepare(self, batch: BucketBatch) -> None:
        """Write what this tick changes: rows that changed hands, tables, times."""
        if len(batch.rows) > self._rows.capacity:
            self.forget_launches()
            self._rows = self._row_buffers(len(batch.rows))
        self._rows.lay_out(batch)
        self._rows.set_times(batch)
        self._steps.write(batch, blends="blend" in self._variant("step", batch.features))
        self.state.set_step(batch)
        self.state.flush()

    def launch(self, batch: BucketBatch) -> tuple[Event, Event]:
        """Execute the tick; afterwards the state's other sides are current. Raises EngineError, ShapeError."""
        key = self._key(batch)
        launch = self._launches.get(key, lambda: self._bind(batch, key.step))
        self.state.before_launch(launch.writes)
        events = self._launches.run(launch)
        for name in launch.writes:
            self.state.double_buffer(name).flip()
        return events

    def finite(self, slot_count: int) -> NDArray[np.bool_]:
        """Per slot, whether the last tick left only finite latents; valid when that tick is done, for as long as two
        ticks are in flight."""
        return self._steps.finite(slot_count)

    def use(self, engines: EngineSet) -> None:
        """Take other engines of the same tensors. What was bound to the old ones is let go of."""
        self.forget_launches()
        self._engines = engines
        self._variants.clear()
        self._steps.forget()
        self._generation += 1

    def forget_launches(self) -> None:
        """Let go of everything that is bound to this bucket's memory."""
        self._launches.drop(lambda key: key.frames == self.frames)

    def _key(self, batch: BucketBatch) -> LaunchKey:
        variant = self._variant("step", batch.features)
        return LaunchKey(
            frames=self.frames,
            slot_count=batch.slot_count,
            executes=batch.executes,
            widths=widths(batch),
            step=variant,
            rows=None if _is_identity(batch) else self._variant("rows", batch.row_features),
            sides=tuple(self.state.double_buffer(name).side for name in writes(variant)),
            generation=self._generation,
        )

    def _bind(self, batch: BucketBatch, variant: frozenset[str]) -> Launch:
        shape = (batch.slot_count, self.frames, self._channels)
        latents = self.state.double_buffer("latents").current.view(*shape)
        rows, hidden_states = None, latents
        if not _is_identity(batch):
            rows, hidden_states, latents = self._bind_rows(batch, latents)
        velocity = self._rows.velocity.view(len(batch.rows), self.frames, self._channels)
        launch = self._techniques.launch(
            rows=rows,
            decoder=tuple(self._bind_decoder(*execute, hidden_states) for execute in batch.executes),
            step=self._steps.bind(self._engines.steps[variant], batch, latents, velocity),
            writes=writes(variant),
        )
        self.state.flush()  # binding may have made fields, with their neutral lines
        return launch

    def _bind_rows(self, batch: BucketBatch, latents: Tensor) -> tuple[Execution, Tensor, Tensor]:
        """The rows engine, the decoder's input, and the latents that the step starts from (masked where a mask is)."""
        engine = self._engines.rows[self._variant("rows", batch.row_features)]
        shape = (batch.slot_count, self.frames, self._channels)
        hidden_states = self._rows.hidden_states.view(len(batch.rows), self.frames, self._channels)
        tensors = self._resolve(engine, batch)
        tensors |= {"latents": latents, "hidden_states": hidden_states}
        if "masked_latents" in engine.outputs:
            if self._masked is None:
                self._masked = self._device.zeros((self._slot_count, self.frames, self._channels), np.float32)
            latents = tensors["masked_latents"] = self._masked.view(*shape)
        return engine.bind(tensors), hidden_states, latents

    def _bind_decoder(self, begin: int, end: int, tokens: int, hidden_states: Tensor) -> Execution:
        tensors = self._rows.decoder_tensors(begin, end, tokens, hidden_states)
        start = begin * self.frames * self._channels
        velocity = self._rows.velocity.view(end - begin, self.frames, self._channels, start=start)
        tensors[self._bundle.decoder.outputs.velocity] = velocity
        return self._engines.decoder.bind(tensors)

    def _resolve(self, engine: Engine, batch: BucketBatch) -> dict[str, Tensor]:
        """Inputs that are known by name: fields of the state, and which slot each row reads."""
        tensors = {name: self.state.tensor(name, batch.slot_count) for name in engine.inputs if name in FIELDS}
        tensors["row_slots"] = self._rows.row_slots.view(len(batch.rows))
        return tensors

    def _variant(self, kind: str, features: frozenset[str]) -> frozenset[str]:
        key = (kind, features)
        if key not in self._variants:
            engines = self._engines.steps if kind == "step" else self._engines.rows
            self._variants[key] = smallest_superset(engines, features)
        return self._variants[key]

    def _row_buffers(self, capacity: int) -> RowBuffers:
        tokens = self._deployment.max_tokens
        return self._techniques.rows(
            self._device, self._stream, self._engines.decoder, self._bundle,
            frames=self.frames, capacity=capacity, tokens=tokens,
        )  # fmt: skip


def _is_identity(batch: BucketBatch) -> bool:
    """Whether row i simply is slot_index i: then the decoder reads the latents where they lie."""
    return (
        not batch.row_features
        and len(batch.rows) == batch.slot_count
        and all(row.slot_index == index for index, row in enumerate(batch.rows))
    )
