"""Several live sessions share a codec that is too slow for them: simulated time, no threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from helpers.live_simulation import MODEL, RATE, STEP_S, Simulation, SlowCodec, new_session

from runtime.live.protocol.actions import LiveModel

SESSIONS, CHANGE_S = 8, 2.0


class Crowd:
    """Sessions of which each changes a step parameter every CHANGE_S, one after the other."""

    def __init__(self, codec: SlowCodec, model: LiveModel = MODEL) -> None:
        self.codec = codec
        self.all = [Simulation(new_session(f"s{n}", model), codec=codec, network_s=0.0) for n in range(SESSIONS)]
        self.changed_s: list[dict[int, float]] = [{} for _ in self.all]
        for each in self.all:
            each.advance()

    def run(self, seconds: float, *, is_changing: bool = True) -> None:
        for _ in range(round(seconds / STEP_S)):
            for index, each in enumerate(self.all):
                each.step()
                seq = int((each.now_s - index * CHANGE_S / SESSIONS) / CHANGE_S)
                if is_changing and seq > max(self.changed_s[index], default=0):
                    self.changed_s[index][seq] = each.now_s
                    each.set(seq, guidance=2.0 + seq % 3)

    @property
    def underruns(self) -> list[int]:
        return [each.session.playhead.underruns for each in self.all]

    def silence_s(self, last_s: float) -> float:
        """Silence of all clients in the last seconds."""
        return sum(float(np.isnan(each.heard[-round(last_s * RATE) :, 0]).sum()) for each in self.all) / RATE

    def late_changes(self, since_s: float, limit_s: float) -> int:
        """How many of the changes since then were not sent complete within a time."""
        now_s = self.all[0].now_s
        late = 0
        for each, changed in zip(self.all, self.changed_s, strict=True):
            for seq, at_s in changed.items():
                heard = np.flatnonzero(each.seqs[: each.playhead or 0, 1] >= seq)
                due = each.now_s - (each.playhead or 0) / RATE  # when sample 0 was played
                is_late = not len(heard) or heard[0] / RATE + due > at_s + limit_s
                late += since_s <= at_s < now_s - limit_s and is_late
        return late


def test_where_short_windows_take_too_long_longer_ones_play_without_a_gap() -> None:
    """0.2 s of audio takes 30 ms, of eight sessions 1.2 s per second; 0.32 s takes 31.5 ms, 0.8 s per second."""
    crowd = Crowd(SlowCodec(0.0275, 0.0005))
    crowd.run(8.0)
    assert crowd.underruns == [0] * SESSIONS
    assert crowd.silence_s(6.0) == 0.0
    assert crowd.late_changes(0.0, 2.5) == 0


def test_where_margins_are_most_of_the_work_windows_become_longer_than_them() -> None:
    """A frame takes 2.5 ms, and a window has 16 frames of margins. In windows of 0.32 s the audio of eight sessions
    takes 1.5 s per second, of 0.96 s 0.83 s.
    """
    crowd = Crowd(SlowCodec(16 * 0.0025, 0.0025), replace(MODEL, margin_frames=8, window_frames=256))
    crowd.run(20.0)
    assert crowd.silence_s(10.0) == 0.0  # Before, the leads of the clients grow.


def test_playing_comes_before_changing() -> None:
    """The codec has little time for more than what is played: changes are heard where they are played first."""
    crowd = Crowd(SlowCodec(0.0, 1 / 25 / SESSIONS / 1.02))
    crowd.run(8.0)
    assert sum(crowd.underruns) == 0
    due_s = [lead_s for window, lead_s in crowd.codec.decoded if not window.is_replacing]
    assert min(due_s[2 * SESSIONS :]) > 0.0
    assert crowd.late_changes(0.0, 3.0) == 0


def test_what_is_late_is_not_decoded_and_all_is_normal_soon_after_an_overload() -> None:
    crowd = Crowd(SlowCodec(0.4))
    crowd.run(4.0)
    assert sum(crowd.underruns) > 0
    left_s = [lead_s + window.num_samples / RATE for window, lead_s in crowd.codec.decoded if window.start_sample > 0]
    assert min(left_s) > -0.05  # Clients report every 0.05 s.
    crowd.codec.window_s = 0.003
    crowd.run(5.0)
    before, now_s = crowd.underruns, crowd.all[0].now_s
    crowd.run(4.0)
    assert crowd.underruns == before
    assert crowd.silence_s(4.0) == 0.0
    assert crowd.late_changes(now_s, 0.5) == 0
