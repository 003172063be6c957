"""The page plays through the death of its replica: two of them behind the edge, one killed while it is heard."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from helpers.cluster import needs_programs, short_folder
from helpers.page_player import TAP, play
from helpers.paths import ROOT
from numpy.typing import NDArray

from server.scale.local_cluster import LocalCluster, free_port, plain_cluster

pytestmark = [pytest.mark.page, needs_programs("haproxy", "redis-server")]
RATE_HZ, BLOCK = 48000, 128
SILENCE = 1e-4
# The largest sample of each block that the player has put out.
LEVELS = "() => tapped.map((planes) => Math.max(...planes.flatMap((plane) => [...plane].map(Math.abs))))"
LOSSES = ("WebSocket connection", "ERR_CONNECTION", "Failed to load resource")


def longest_silence_s(levels: NDArray[np.float64]) -> float:
    """The longest run of silent blocks."""
    heard = np.flatnonzero(np.concatenate([[1.0], levels, [1.0]]) > SILENCE)
    return float((np.diff(heard).max() - 1) * BLOCK / RATE_HZ)


def levels_after_kill(page: Any, cluster: LocalCluster, name: str, seconds: float) -> NDArray[np.float64]:
    """What the page puts out in the seconds after a replica is killed."""
    page.evaluate("tapped.length = 0")
    cluster.launched[name].kill()
    page.wait_for_timeout(1000 * seconds)
    return np.array(page.evaluate(LEVELS))


def connected(url: str) -> bool:
    """Whether a replica has a session with a client."""
    text = httpx.get(f"{url}/metrics").text
    return any(line.startswith("tickrt_live_connected{") and line.endswith(" 1.0") for line in text.splitlines())


def test_a_run_of_silent_blocks_is_a_gap() -> None:
    levels = np.ones(100)
    levels[40:60] = 0.0
    assert longest_silence_s(levels) == pytest.approx(20 * BLOCK / RATE_HZ)


def test_it_plays_through_kill_9_of_its_replica(open_page: Any) -> None:
    bind = f"127.0.0.1:{free_port()}"
    with (
        short_folder() as folder,
        plain_cluster(ROOT / "configs/demo.toml", folder, bind, TICKRT_MAX_REFRESH_S="1e6") as cluster,
    ):
        urls = {lease.name: f"http://{lease.address}" for lease in cluster.leases()}
        page = open_page(f"http://{bind}/", script=TAP, bypass_csp=True, allowed=LOSSES)
        play(page)
        page.wait_for_timeout(3000)
        (owner,) = (name for name, url in urls.items() if connected(url))
        (other,) = set(urls) - {owner}
        levels = levels_after_kill(page, cluster, owner, 5.0)
        played_s, gap_s = len(levels) * BLOCK / RATE_HZ, longest_silence_s(levels)
        print(f"page, SIGKILL of its replica: {played_s:.1f} s played, the largest gap was {gap_s:.2f} s")
        assert connected(urls[other])
        assert played_s > 4.0
        assert gap_s < 0.5
        silence_s = longest_silence_s(levels_after_kill(page, cluster, other, 6.0))
        print(f"page, SIGKILL of the last replica: silence for {silence_s:.2f} s")
        assert silence_s > 1.0
