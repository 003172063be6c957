"""The client's playhead, estimated from its reports, and how far ahead of it audio is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.base.errors import RequestError
from runtime.live.protocol.messages import Ack

REACH_S = 0.02  # Audio this close after the playhead is not replaced: it is played before what replaces it is there.
LEAD_START_S, LEAD_MIN_S, LEAD_MAX_S = 0.4, 0.3, 2.0
# A dip is how far the client's buffer was below the lead. The lead is this much more than the largest dip of the last
# minutes; changes replace what was sent, so a long lead delays nothing.
LEAD_PER_DIP, DIP_DECAY_PER_S = 4.0, 0.005
LEAD_GROWTH_INTERVAL_S, LEAD_SHRINK_PER_S = 0.25, 0.05
ACK_TIMEOUT_S = 5.0
# A playhead may run this much faster than the clock, and be this much ahead of it: a client that resumes plays what it
# has, while the server that it resumes at begins at the last position that was stored.
ACK_RATE, ACK_SLACK_S = 1.1, 2.0
# Reports of a playhead that runs faster than this since it was attached count as this fast: it decides how much audio
# is decoded.
MAX_RATE, MAX_RATE_SLACK_S = 2.0, 2.0


@dataclass(eq=False)
class SessionClock:
    """The time of one session, in seconds of a monotonic clock that its host reads.

    The session sets `now_s` where a call enters it, and its parts read it: it stands still until the next call.
    """

    now_s: float


class Playhead:
    """Position on the play axis in samples, from the newest ack and the time since; it never runs backwards.

    It stands still before the first ack, while paused or detached, and where the audio that was sent ends
    (`sent_until`). `lead_s` grows when the client's buffer runs low and shrinks slowly when it has long stayed full.
    """

    def __init__(
        self, clock: SessionClock, sample_rate_hz: int, position: int = 0, lead_s: float = LEAD_START_S
    ) -> None:
        self.rate_hz = sample_rate_hz
        self.lead_s = lead_s
        self.sent_until = position
        self.is_playing = True
        self.is_attached = False
        self.underruns = 0
        self.client_time_s: float | None = None
        self.clock = clock
        self._floor = self._first_sample = position
        self._acked, self._acked_s = position, 0.0
        self._attached_s = 0.0
        self._known_s = 0.0  # when the client's own playhead was known last
        self._is_running = False
        self._dip_s = lead_s / LEAD_PER_DIP
        self._grown_s = -math.inf
        self._adapted_s = 0.0

    def snapshot(self) -> dict[str, Any]:
        """JSON values that `restore` takes."""
        return {
            "position": self.position,
            "lead_s": self.lead_s,
            "is_playing": self.is_playing,
            "underruns": self.underruns,
        }

    @classmethod
    def restore(cls, values: Mapping[str, Any], clock: SessionClock, sample_rate_hz: int) -> Playhead:
        """The playhead of a snapshot, not attached."""
        playhead = cls(clock, sample_rate_hz, values["position"], values["lead_s"])
        playhead.is_playing, playhead.underruns = values["is_playing"], values["underruns"]
        return playhead

    @property
    def position(self) -> int:
        """The sample that the client plays now."""
        if not self._is_running:
            return self._floor
        estimate = self._acked + round(max(0.0, self.clock.now_s - self._acked_s) * self.rate_hz)
        return max(self._floor, min(self.sent_until, estimate))

    @property
    def reach(self) -> int:
        """The first sample that can still be replaced."""
        return self.position + round(REACH_S * self.rate_hz)

    @property
    def wanted_until(self) -> int:
        """How far audio is to be sent."""
        return self.position + round(self.lead_s * self.rate_hz)

    @property
    def is_active(self) -> bool:
        """Whether audio is wanted: attached, not paused, the last ack is recent or there was nothing to ack yet."""
        is_recent = self.clock.now_s < self.active_until_s or self.sent_until == self._first_sample
        return self.is_attached and self.is_playing and is_recent

    @property
    def active_until_s(self) -> float:
        """When the client counts as silent unless it acks before."""
        return self._acked_s + ACK_TIMEOUT_S

    def reaches_s(self, sample: int) -> float:
        """When the playhead reaches a sample, if it runs on."""
        return self.clock.now_s + (sample - self.position) / self.rate_hz

    def attach(self) -> None:
        """A client has connected: it holds no audio; what it plays begins at the position."""
        self._hold()
        self.is_attached = True
        self.sent_until = self._first_sample = self._floor
        self._acked_s = self._known_s = self._attached_s = self.clock.now_s

    def detach(self) -> None:
        """The connection has ended."""
        self._hold()
        self.is_attached = False

    def send(self, end_sample: int) -> None:
        """Audio up to a sample is sent. With the first of a connection, the time for its first ack begins."""
        if self.sent_until == self._first_sample and not self._is_running:
            self._acked_s = self.clock.now_s
        self.sent_until = max(self.sent_until, end_sample)

    def pause(self) -> None:
        """Stand still until `play`."""
        self._hold()
        self.is_playing = False

    def play(self) -> None:
        """Go on; the playhead runs again from the next ack."""
        self.is_playing = True
        self._acked_s = self.clock.now_s

    def check_ack(self, ack: Ack) -> None:
        """Raise RequestError for a playhead that is further than audio was sent and than time can have brought it."""
        elapsed_s = max(0.0, self.clock.now_s - self._known_s)
        limit = self._floor + round((elapsed_s * ACK_RATE + ACK_SLACK_S) * self.rate_hz)
        if ack.playhead_sample > max(limit, self.sent_until):
            raise RequestError(
                f"{ack.playhead_sample} is too far ahead, audio was sent up to {self.sent_until}",
                field="playhead_sample",
                fix="report the next sample that is played",
            )

    def ack(self, ack: Ack) -> int:
        """Take a report that passed `check_ack`; returns the position that it counts as."""
        now_s = self.clock.now_s
        attached_s = now_s - self._attached_s
        fastest = self._first_sample + round((attached_s * MAX_RATE + MAX_RATE_SLACK_S) * self.rate_hz)
        self.client_time_s = ack.client_time_s
        acked = min(ack.playhead_sample, fastest)
        self._floor = max(self.position, acked)
        self._acked, self._acked_s = acked, now_s
        self._known_s = now_s
        self._is_running = self.is_playing and self.is_attached
        if ack.worst_lead_s is not None:
            self._adapt(ack.worst_lead_s)
        return acked

    def _hold(self) -> None:
        self._floor = self.position
        self._is_running = False

    def _adapt(self, worst_lead_s: float) -> None:
        """Follow the dips. After growing, dips count again once audio that was sent with the new lead can be there."""
        now_s = self.clock.now_s
        elapsed_s = min(max(0.0, now_s - self._adapted_s), 1.0)
        self._adapted_s = now_s
        self._dip_s *= (1 - DIP_DECAY_PER_S) ** elapsed_s
        has_audio = self.sent_until != self._first_sample
        if has_audio and now_s >= self._grown_s + LEAD_GROWTH_INTERVAL_S:
            self._dip_s = min(max(self._dip_s, self.lead_s - worst_lead_s), LEAD_MAX_S / LEAD_PER_DIP)
        wanted_s = max(LEAD_PER_DIP * self._dip_s, LEAD_MIN_S)
        if wanted_s > self.lead_s:
            self.lead_s, self._grown_s = wanted_s, now_s
        else:
            self.lead_s = max(wanted_s, self.lead_s * (1 - LEAD_SHRINK_PER_S) ** elapsed_s)
