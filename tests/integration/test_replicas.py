"""Two replicas that share a Redis: one that is full sends its clients to the other one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers.acestep_client import wav_file
from helpers.http_harness import GENERATIONS, Served, eventually, open_websocket, problem, serving
from helpers.live_player import player
from helpers.redis_server import redis_server
from websockets.exceptions import InvalidStatus

import tickrt
from runtime.config.deployment import Deployment
from runtime.live.protocol.server_messages import Applied, Closed, Problem
from server.service.lease import Lease
from server.service.leases import Leases

BODY = {"prompt": "a", "seed": 1, "seconds": 0.64}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def others(served: Served) -> list[Lease]:
    return served.service.membership.others


def unreachable(name: str, served: Served) -> Lease:
    """The lease of a replica of the same model with room, which no request reaches."""
    model, precision = served.pipeline.bundle.name, served.pipeline.identity.precision
    return Lease(name, "127.0.0.1:1", "", "ready", 0, 1, 0.0, model=model, precision=precision)


@pytest.fixture(scope="module")
def replicas(
    tiny: Callable[..., Deployment], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served, Served]]:
    """Two replicas with one place for a session and one slot each, which know each other."""
    with ExitStack() as running:
        redis = running.enter_context(redis_server(tmp_path_factory.mktemp("redis")))
        started = []
        for name in ("one", "two"):
            port = free_port()
            settings = {"replica": name, "port": port, "replica_url": f"http://127.0.0.1:{port}", "redis": redis.url}
            started.append(
                running.enter_context(serving(tiny(depth=1, queue=0), max_sessions=1, client_sessions=0, **settings))
            )
        one, two = started
        eventually(lambda: all(lease.state == "ready" for lease in (*others(one), *others(two))) and others(one))
        eventually(lambda: others(two))
        yield one, two


def test_a_session_that_finds_no_room_is_sent_to_the_other_replica(replicas: tuple[Served, Served]) -> None:
    one, two = replicas
    with player(one) as first, player(one) as second, player(two) as third:
        first.open(prompts=[{"text": "a"}])
        second.send(type="open", prompts=[{"text": "a"}])
        refused = second.receive()
        assert isinstance(refused, Problem)
        assert refused.code == "sessions_full"
        assert second.receive_end() == (Closed(reason="moved", resumable=False, url=two.url), 4307)
        with tickrt.TickRT(one.url).live("a") as live:
            live.read(800)
            assert two.service.host is not None
            assert two.service.host.stats().connected == 1
            eventually(lambda: others(one)[0].state == others(two)[0].state == "full")
            third.send(type="open", prompts=[{"text": "a"}])
            assert isinstance(third.receive(), Problem)
            assert third.receive_end() == (Closed(reason="unavailable", resumable=False), 1013)
            assert two.metrics()["tickrt_live_sessions{replica=two}"] == 1
        first.send(type="close")
        first.receive_end()


def test_a_session_is_found_and_ended_through_every_replica(replicas: tuple[Served, Served]) -> None:
    one, two = replicas
    with player(one) as first, one.client() as at_one, two.client() as at_two:
        session = first.open(prompts=[{"text": "a"}]).session
        for client in (at_one, at_two):
            assert [card["id"] for card in client.get("/v1/sessions").json()["data"]] == [session]
            assert client.get(f"/v1/sessions/{session}").json()["connected"]
            problem(client.get("/v1/sessions/unknown"), 404, "unknown_session")
        passed_on = at_two.get(f"/v1/sessions/{session}", headers={"X-TickRT-Forwarded": "1"})
        problem(passed_on, 404, "unknown_session")
        assert at_two.delete(f"/v1/sessions/{session}").status_code == 204
        assert first.receive_end()[0].reason == "deleted"


def test_what_made_a_generation_is_told_by_every_replica(replicas: tuple[Served, Served]) -> None:
    made = replicas[0].post(**BODY)
    assert [one.card(made)["options"] for one in replicas] == [BODY, BODY]
    with replicas[1].client() as client:
        problem(client.get(f"{GENERATIONS}/{'0' * 32}"), 404, "generation_not_found")


def test_a_replica_that_may_have_a_session_and_does_not_answer_is_reported(replicas: tuple[Served, Served]) -> None:
    one, two = replicas
    leases = Leases(one.service.settings.redis.get_secret_value())
    gone = unreachable("gone", one)
    leases.renew(gone)
    eventually(lambda: gone in others(two))
    with player(one) as first, two.client() as client:
        session = first.open(prompts=[{"text": "a"}]).session
        assert client.get(f"/v1/sessions/{session}").json()["id"] == session
        for path in ("/v1/sessions", "/v1/sessions/unknown"):
            answer = client.get(path)
            assert "replica gone" in problem(answer, 503, "replica_silent")["detail"]
            assert answer.headers["retry-after"] == "3"
        first.send(type="close")
        first.receive_end()
    leases.release("gone")
    leases.close()
    eventually(lambda: gone not in others(one) + others(two))


def test_a_source_is_at_every_replica(replicas: tuple[Served, Served]) -> None:
    one, two = replicas
    with one.client() as at_one, two.client() as at_two, player(two) as live:
        source = at_one.post("/v1/sources", content=wav_file(1.0)).json()
        assert at_two.get("/v1/sources").json()["data"] == [source]
        assert at_two.post(GENERATIONS, json={**BODY, "source_id": source["id"]}).status_code == 200
        live.open(prompts=[{"text": "a"}])
        live.send(type="source", seq=1, id=source["id"], strength=0.5)
        live.receive_until(lambda item: isinstance(item, Applied) and item.seq == 1)
        live.send(type="close")
        live.receive_end()
        assert at_two.delete(f"/v1/sources/{source['id']}").status_code == 204
        problem(at_one.post(GENERATIONS, json={**BODY, "source_id": source["id"]}), 404, "source_not_found")


def test_where_all_are_full_a_session_whose_client_is_away_makes_room(replicas: tuple[Served, Served]) -> None:
    one, two = replicas
    with player(one) as playing, player(two) as left, player(two) as refused, player(two) as newcomer:
        playing.open(prompts=[{"text": "a"}])
        left.open(prompts=[{"text": "a"}])
        eventually(lambda: others(one) and others(one)[0].session_wait_s == 5.0)
        eventually(lambda: others(two)[0].session_wait_s == 5.0)
        refused.send(type="open", prompts=[{"text": "a"}])
        found = refused.receive()
        assert isinstance(found, Problem)
        assert found.retry_after_s == 5.0
        left.reset()
        eventually(lambda: others(one)[0].session_wait_s == 0.0)
        newcomer.open(prompts=[{"text": "a"}])
        for client in (newcomer, playing):
            client.send(type="close")
            client.receive_end()


def test_a_full_replica_behind_an_edge_refuses_so_that_the_edge_sends_the_session_on(
    replicas: tuple[Served, Served],
) -> None:
    one, _ = replicas
    leases = Leases(one.service.settings.redis.get_secret_value())
    with player(one) as first:
        first.open(prompts=[{"text": "a"}])
        leases.renew(unreachable("three", one))
        eventually(lambda: "three" in [lease.name for lease in others(one)])
        for path in ("/v1/live", "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateMusic"):
            with pytest.raises(InvalidStatus) as refused, open_websocket(one, path):
                pass
            assert refused.value.response.status_code == 503
        leases.release("three")
        leases.close()
        eventually(lambda: [lease.name for lease in others(one)] == ["two"])
        first.send(type="close")
        first.receive_end()


def test_a_generation_that_finds_no_place_is_redirected(replicas: tuple[Served, Served]) -> None:
    one, two = replicas
    permit = one.service.admission.admit("me")
    permit.remaining_steps = 1000
    one.service.admission.ticks_s = lambda num_ticks: num_ticks / 10
    try:
        with one.client() as client:
            redirected = client.post(GENERATIONS, json=BODY)
            assert (redirected.status_code, redirected.headers["location"]) == (307, f"{two.url}{GENERATIONS}")
            assert client.post(GENERATIONS, json=BODY, follow_redirects=True).status_code == 200
            taken = two.service.admission.admit("me")
            taken.remaining_steps = 1000
            two.service.admission.ticks_s = lambda num_ticks: num_ticks / 10
            eventually(lambda: others(one)[0].queue_wait_s == 100.0)
            full = client.post(GENERATIONS, json=BODY)
            problem(full, 503, "queue_full")
            assert full.headers["retry-after"] == "100"
            taken.release()
    finally:
        permit.release()


def test_a_replica_that_is_gone_has_no_lease(
    replicas: tuple[Served, Served], tiny: Callable[..., Deployment], tmp_path: Path
) -> None:
    one, _ = replicas
    redis = one.service.settings.redis
    with serving(tiny(depth=1, queue=0), redis=redis, replica="three", replica_url="http://127.0.0.1:1"):
        eventually(lambda: [lease.name for lease in others(one)] == ["three", "two"])
    eventually(lambda: [lease.name for lease in others(one)] == ["two"])
