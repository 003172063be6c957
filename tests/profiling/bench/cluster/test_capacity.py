"""From one session to many listeners."""

from __future__ import annotations

import doctest

import pytest
from helpers.paths import ROOT

from profiling.bench.cluster.capacity import SessionCost

RUN = {
    "ticks_share": 0.2, "server_cpu": 0.3, "edge_cores": 0.038, "kbit_per_s_per_session": 1600.0,
    "store_bytes_per_s_per_session": 20_000.0,
}  # fmt: skip


@pytest.mark.parametrize(("cores", "share"), [(4.0, 0.05), (1.0, 0.075)])
def test_a_session_takes_of_the_tick_loop_or_of_the_cores_whichever_is_more(cores: float, share: float) -> None:
    assert SessionCost.of(RUN, 0.0, sessions=8, replicas=2, cores=cores).replica_share == share


def test_listeners_need_replicas_with_a_spare_one_and_the_rest_by_session() -> None:
    cost = SessionCost.of(RUN, 0.01, sessions=4, replicas=1, cores=4.0)
    assert cost.listeners_per_replica == 14
    assert cost.needs(14)["replicas"] == 2
    assert cost.needs(15)["replicas"] == 3
    assert cost.needs(1_000) == {
        "listeners": 1_000, "replicas": 73, "edge_cores": 10.0, "audio_mbit_per_s": 1600.0, "store_mb_per_s": 20.0
    }  # fmt: skip


def test_a_session_that_takes_most_of_a_replica_has_one_of_its_own() -> None:
    assert SessionCost(0.8, 0.0, 0.0, 0.0).needs(10)["replicas"] == 11


def test_the_result_has_10_1000_and_10000_listeners() -> None:
    result = SessionCost(0.0699, 0.01, 1600.0, 10.0).as_json()
    assert [point["listeners"] for point in result["points"]] == [10, 1_000, 10_000]
    assert (result["replica_share"], result["listeners_per_replica"]) == (0.0699, 10)


def test_the_examples_of_the_page_are_right() -> None:
    failed, tried = doctest.testfile(str(ROOT / "server" / "cluster" / "README.md"), module_relative=False)
    assert (failed, tried > 2) == (0, True)
