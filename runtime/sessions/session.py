"""A live session as a state machine: no sockets, no clocks, no threads.

It takes the client's messages, playhead reports and finished latents, and gives actions. Every call has the time
`now_s` of one monotonic clock, real or simulated. The host calls `advance` after each call that may change something
and whenever `due_s` has come, and carries out the actions in their order.
"""

from __future__ import annotations

from collections.abc import Iterable

from runtime.audio.formats import Pcm
from runtime.errors import TickError
from runtime.requests.segments import Latents
from runtime.sessions.actions import Action, DecodeWindow, LiveModel
from runtime.sessions.messages import ClientMessage, Open, Ready, WriteAudio
from runtime.sessions.store import SessionSnapshot


class LiveSession:
    """One client's stream. Used by one thread at a time.

    source `[N, C]`: the latents of `opened.source_id`. Raises RequestError where `opened` does not fit the model.
    """

    def __init__(
        self, session_id: str, model: LiveModel, opened: Open, now_s: float, source: Latents | None = None
    ) -> None:
        raise NotImplementedError

    @property
    def num_jobs(self) -> int:
        """Generations in flight."""
        raise NotImplementedError

    @property
    def is_active(self) -> bool:
        """Whether it plays: connected, not paused, and the client reports its playhead."""
        raise NotImplementedError

    def wanted_s(self, now_s: float) -> float | None:
        """Since when it wants one more generation than it has in flight; None where it wants none."""
        raise NotImplementedError

    def attach(self, token: str, now_s: float, *, keep_s: float) -> Ready:
        """A client has connected: a new epoch begins at the playhead. `token`: what resumes the session later."""
        raise NotImplementedError

    def detach(self, now_s: float) -> None:
        """The connection is gone: nothing runs until the next `attach`."""
        raise NotImplementedError

    def has_token(self, token: str) -> bool:
        """Whether `token` resumes this session; compared in constant time."""
        raise NotImplementedError

    def handle(self, message: ClientMessage, now_s: float, latents: Latents | None = None) -> None:
        """Take a client's message. Raises RequestError; then nothing has changed.

        latents `[N, C]`: of SetSource, the source; of WriteAudio, the frames of `write_region` with the audio in them.
        """
        raise NotImplementedError

    def write_region(self, message: WriteAudio) -> tuple[int, Latents]:
        """What a write overwrites, as it is now: the offset of its first sample in the region, the frames `[n, C]`.

        The caller decodes them, puts the audio in or adds it, encodes, and passes the result to `handle`. Raises
        RequestError.
        """
        raise NotImplementedError

    def advance(self, now_s: float, *, may_generate: bool = True) -> list[Action]:
        """Everything that is to be done now; at most one Generate, and none unless `may_generate`."""
        raise NotImplementedError

    def due_s(self) -> float | None:
        """When `advance` has to be called if nothing else happens; None: only after another call."""
        raise NotImplementedError

    def generation_finished(self, job_id: str, latents: Latents, tick: int, now_s: float) -> None:
        """A generation's latents `[T, C]`; they belong to the session from now on. Unknown ids are ignored."""
        raise NotImplementedError

    def generation_failed(self, job_id: str, error: TickError, now_s: float) -> None:
        """A generation ended without latents; it is tried again later. Unknown ids are ignored."""
        raise NotImplementedError

    def step_applied(self, seq: int, job_ids: Iterable[str], tick: int) -> None:
        """An UpdateSteps has reached these generations."""
        raise NotImplementedError

    def decoded(self, window: DecodeWindow, pcm: Pcm | None, now_s: float) -> None:
        """The PCM `[n, channels]` of a window, trimmed; None where it could not be decoded."""
        raise NotImplementedError

    def snapshot(self, now_s: float) -> SessionSnapshot:
        """Everything that `restore` needs. Its arrays do not change later."""
        raise NotImplementedError

    @classmethod
    def restore(cls, snapshot: SessionSnapshot, model: LiveModel, now_s: float) -> LiveSession:
        """A session as it was, without connection and without generations in flight. Raises RequestError."""
        raise NotImplementedError
