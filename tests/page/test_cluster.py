"""The page plays through the death of its replica: two of them behind the edge, one killed while it is heard.

Once with replicas that run by themselves, and once with those of `tickrt-cluster up`, under Ray Serve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.cluster import needs_programs, needs_ray, process_of, run_command, short_folder
from helpers.page_player import TAP, play
from helpers.paths import DEMO
from numpy.typing import NDArray

from server.cluster.local_cluster import LocalCluster, free_port, plain_cluster
from server.cluster.ray_cluster import RayCluster
from server.service.lease import Lease

pytestmark = [pytest.mark.page, needs_programs("haproxy", "redis-server")]
RATE_HZ, BLOCK = 48000, 128
SILENCE = 1e-4
SETTINGS = {"TICKRT_MAX_REFRESH_S": "1e6"}
# The largest sample of each block that the player has put out.
LEVELS = "() => tapped.map((planes) => Math.max(...planes.flatMap((plane) => [...plane].map(Math.abs))))"
LOSSES = ("WebSocket connection", "ERR_CONNECTION", "Failed to load resource")


def longest_silence_s(levels: NDArray[np.float64]) -> float:
    """The longest run of silent blocks."""
    heard = np.flatnonzero(np.concatenate([[1.0], levels, [1.0]]) > SILENCE)
    return float((np.diff(heard).max() - 1) * BLOCK / RATE_HZ)


def levels_after(end: Callable[[], object], page: Any, seconds: float) -> NDArray[np.float64]:
    """What the page puts out while something is ended, and in the seconds after that."""
    page.evaluate("tapped.length = 0")
    end()
    page.wait_for_timeout(1000 * seconds)
    return np.array(page.evaluate(LEVELS))


def is_connected(lease: Lease) -> bool:
    """Whether a replica has a session with a client."""
    text = httpx.get(f"http://{lease.address}/metrics").text
    return any(line.startswith("tickrt_live_connected{") and line.endswith(" 1.0") for line in text.splitlines())


def play_through_kill_9(page: Any, cluster: LocalCluster) -> Lease:
    """Play, kill the replica that has the session, and check what is heard then; the replica that has it now."""
    play(page)
    page.wait_for_timeout(3000)
    (owner,) = filter(is_connected, cluster.leases())
    levels = levels_after(process_of(cluster, owner).kill, page, 5.0)
    played_s, gap_s = len(levels) * BLOCK / RATE_HZ, longest_silence_s(levels)
    print(f"page, SIGKILL of its replica: {played_s:.1f} s played, the largest gap was {gap_s:.2f} s")
    assert played_s > 4.0
    assert gap_s < 0.5
    (other,) = (lease for lease in cluster.leases() if lease.name != owner.name and is_connected(lease))
    return other


def hear_the_end(page: Any, end: Callable[[], object]) -> None:
    """End the page's only replica: where nothing plays on, silence is measured."""
    silence_s = longest_silence_s(levels_after(end, page, 6.0))
    print(f"page, its last replica ends: silence for {silence_s:.2f} s")
    assert silence_s > 1.0


def test_a_run_of_silent_blocks_is_a_gap() -> None:
    levels = np.ones(100)
    levels[40:60] = 0.0
    assert longest_silence_s(levels) == pytest.approx(20 * BLOCK / RATE_HZ)


def test_it_plays_through_kill_9_of_its_replica(open_page: Any) -> None:
    bind = f"127.0.0.1:{free_port()}"
    with short_folder() as folder, plain_cluster(DEMO, folder, bind, **SETTINGS) as cluster:
        page = open_page(f"http://{bind}/", script=TAP, bypass_csp=True, allowed=LOSSES)
        other = play_through_kill_9(page, cluster)
        hear_the_end(page, process_of(cluster, other).kill)


@pytest.mark.slow
@needs_ray()
def test_it_plays_through_kill_9_of_a_replica_of_tickrt_cluster(open_page: Any, cluster: RayCluster) -> None:
    run_command(cluster, "up", DEMO, "--replicas", 2, "--port", 0, **SETTINGS)
    assert cluster.applied is not None
    page = open_page(cluster.applied.url, script=TAP, bypass_csp=True, allowed=LOSSES)
    play_through_kill_9(page, cluster)
    hear_the_end(page, lambda: run_command(cluster, "down"))
