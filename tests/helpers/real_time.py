"""A client that plays in real time, and by how much its audio was late."""

from __future__ import annotations

import time

import numpy as np

import tickrt

RATE_HZ = 8000
CHUNK = RATE_HZ // 20


class Player:
    """Reads a session in real time. heard: its audio so far, in pieces."""

    def __init__(self, live: tickrt.Live) -> None:
        self._live = live
        self.heard = [live.read(CHUNK)]
        self._due_s = time.monotonic()

    def play(self, seconds: float) -> float:
        """Play on; by how much the latest chunk was late, in seconds. What passes between two calls counts."""
        late_s = 0.0
        for _ in range(round(seconds * RATE_HZ) // CHUNK):
            self._due_s += CHUNK / RATE_HZ
            time.sleep(max(0.0, self._due_s - time.monotonic()))
            self.heard.append(self._live.read(CHUNK))
            late_s = max(late_s, time.monotonic() - self._due_s)
        return late_s


def play(live: tickrt.Live, seconds: float) -> tuple[np.ndarray, float]:
    """What a player in real time reads, and by how much the latest chunk was late."""
    player = Player(live)
    late_s = player.play(seconds - CHUNK / RATE_HZ)
    return np.concatenate(player.heard), late_s
