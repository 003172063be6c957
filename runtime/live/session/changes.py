"""What clients change of a session: controls, prompts and references, at once or from a sample on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.base.errors import RequestError
from runtime.config.codec import Latents
from runtime.live.parts.controls import check_controls, prompt_weights
from runtime.live.parts.core import SessionCore
from runtime.live.parts.extend import ExtendMode
from runtime.live.parts.loop import LoopMode
from runtime.live.parts.pieces import Pieces
from runtime.live.playback.canvas import Piece
from runtime.live.protocol.actions import CheckedControls
from runtime.live.protocol.messages import (
    SetAdapter,
    SetControls,
    SetPrompts,
    SetReference,
    SetSource,
    SetStructure,
    SetTimbre,
    client_message,
)
from runtime.live.protocol.server_messages import message_text
from runtime.live.storage.document import damaged

Change = SetPrompts | SetReference


@dataclass(frozen=True, eq=False)
class Waiting:
    """A message that is carried out at `at_sample`; piece: the latents that came with it, as for LiveSession.handle."""

    at_sample: int
    message: Change
    piece: Piece | None


class Changes:
    """waiting: those that begin at a sample that is to come, in order. texts_seq: of one that may be of texts."""

    takes = (SetControls, SetAdapter, SetPrompts, SetSource, SetTimbre, SetStructure)

    def __init__(self, core: SessionCore, mode: LoopMode | ExtendMode) -> None:
        self.waiting: list[Waiting] = []
        self.texts_seq: int | None = None
        self._core, self._model, self._controls, self._mode = core, core.model, core.controls, mode

    def handle(self, message: Any, latents: Latents | None, at_sample: int | None) -> int | None:
        """Take a message, now or from a sample on. Raises RequestError; then nothing has changed.

        latents `[N, C]`: of a source, hints or, `[F, C]`, a reference.
        """
        if isinstance(message, SetControls):
            self._mode.check_bars(message.values, "values.loop_bars")
            values = check_controls(message.values, self._model, others=self._controls.final_values)
            self._change(values, message, at_sample)
            self.texts_seq = message.seq
        elif isinstance(message, SetAdapter):
            self._set_adapter(message)
        else:
            self._take(message, latents, at_sample)
        return at_sample

    def _change(self, values: CheckedControls, message: SetControls | SetAdapter, at_sample: int | None) -> None:
        ramp_s = message.ramp_ms / 1e3
        if at_sample is not None:
            self._controls.schedule(at_sample, values, message.seq, ramp_s)
        else:
            self._controls.change(values, message.seq, ramp_s)

    def _set_adapter(self, message: SetAdapter) -> None:
        """Of the control `adapters`, which has all of them, only this one changes, or goes."""
        strengths = {item.id: item.strength for item in self._controls.value("adapters")}
        strengths |= {message.id: message.strength}
        adapters = [{"id": id_, "strength": value} for id_, value in strengths.items() if value is not None]
        try:
            values = check_controls({"adapters": adapters}, self._model)
        except RequestError as error:
            raise error.renamed("id") from None
        self._change(values, message, None)

    def _take(self, message: Change, latents: Latents | None, at_sample: int | None) -> None:
        if isinstance(message, SetPrompts):
            prompt_weights(message.items, self._model, "items")
        else:
            self._core.references.check(message.type, message.id, latents)
        piece = None if latents is None else Piece(f"waiting/{message.seq}", latents)
        if at_sample is None:
            self.begin(Waiting(self._core.playhead.position, message, piece))
            return
        self._wait([*self.waiting, Waiting(at_sample, message, piece)])
        self._controls.schedule(at_sample, CheckedControls({}), message.seq)

    def _wait(self, items: Iterable[Waiting]) -> None:
        self.waiting = sorted(items, key=lambda each: each.at_sample)

    def advance(self, before_sample: float) -> None:
        """Begin what waits for samples before this one."""
        if (seq := self._controls.begin_scheduled(before_sample, self._core.playhead)) is not None:
            self.texts_seq = seq
        while self.waiting and self.waiting[0].at_sample < before_sample:
            self.begin(self.waiting.pop(0))

    def begin(self, item: Waiting) -> None:
        """Carry out a message that was checked."""
        message, latents = item.message, None if item.piece is None else item.piece.latents
        if isinstance(message, SetPrompts):
            weights = prompt_weights(message.items, self._model, "items")
            start_s = self._core.playhead.reaches_s(item.at_sample)
            self._controls.change_prompts(weights, message.blend, message.seq, message.ramp_ms / 1e3, start_s)
            self.texts_seq = message.seq
        else:
            given = (message.type, message.id, message.strength, latents, message.seq)
            self._controls.change(self._core.references.take(*given), message.seq)

    def stored(self, pieces: Pieces) -> list[tuple[int, dict[str, Any], str | None]]:
        """What `restore` takes."""
        return [
            (
                item.at_sample,
                json.loads(message_text(item.message)),
                None if item.piece is None else pieces.store(item.piece),
            )
            for item in self.waiting
        ]

    def restore(self, stored: Iterable[tuple[int, Mapping[str, Any], str | None]], pieces: Pieces) -> None:
        """Go on with what waits. Raises StoreError."""
        self._wait(
            Waiting(sample, _waiting_message(values), None if name is None else pieces.load(name))
            for sample, values, name in stored
        )


def _waiting_message(values: Mapping[str, Any]) -> Change:
    try:
        message = client_message(values)
    except RequestError as error:
        raise damaged(f"waiting: {error}") from None
    if not isinstance(message, Change):
        raise damaged(f"waiting: {message.type} does not wait")
    return message
