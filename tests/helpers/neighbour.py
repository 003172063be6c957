"""A client that streams one generation after another, in a process of its own: its waits are the server's alone."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from itertools import pairwise

import httpx

GENERATION = {"prompt": "a", "seconds": 20, "response_format": "pcm", "steps": 8}


class Neighbour:
    """The client, for the length of a block. `max_gap_s`: the longest wait for audio, once the block has ended."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, __file__, url]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.max_gap_s = float("inf")

    def __enter__(self) -> Neighbour:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "plays\n"
        return self

    def __exit__(self, *_: object) -> None:
        self.max_gap_s = float(self._process.communicate()[0])


def play(url: str) -> None:
    """Print "plays" with the first audio, and the longest wait after the end of standard input."""
    is_ended, gaps_s = threading.Event(), [0.0]
    threading.Thread(target=lambda: (sys.stdin.read(), is_ended.set())).start()
    with httpx.Client(base_url=url, timeout=60.0) as client:
        while not is_ended.is_set():
            with client.stream("POST", "/v1/audio/generations", json=GENERATION) as response:
                times_s = []
                for _ in response.iter_raw():
                    times_s.append(time.monotonic())
                    if len(gaps_s) == len(times_s) == 1:
                        print("plays", flush=True)
            gaps_s += [after - before for before, after in pairwise(times_s)]
    print(max(gaps_s))


if __name__ == "__main__":
    play(sys.argv[1])
