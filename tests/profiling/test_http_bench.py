from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.http_harness import Served
from typer.testing import CliRunner

from profiling import http_bench
from profiling.http_bench import StreamTiming, cli, measure, span_s, stream_one
from runtime.config.deployment import Deployment

BODIES = [{"prompt": "a", "seed": seed, "seconds": 0.5, "steps": 2} for seed in range(3)]


def test_the_span_is_from_the_first_start_to_the_last_end() -> None:
    assert (
        span_s([StreamTiming(2.0, 3.0, 4.0, 1), StreamTiming(1.0, 3.5, 3.5, 1), StreamTiming(3.0, 4.0, 6.5, 1)]) == 5.5
    )


def test_both_ways_are_measured_with_all_clients(served: Served) -> None:
    before = served.metrics()["tickrt_generations_total{outcome=ok}"]
    result = measure(served.url, BODIES, rounds=2)
    assert served.metrics()["tickrt_generations_total{outcome=ok}"] - before == 3 * (1 + 2 * 2)
    assert (result["clients"], result["rounds"]) == (3, 2)
    assert result["ratio"] == pytest.approx(result["concurrent_s"] / result["sequential_s"], rel=0.1)
    assert 0 < result["sequential_first_audio_s"] <= result["sequential_s"]
    assert 0 < result["concurrent_first_audio_s"] <= result["concurrent_s"]


def test_a_refused_generation_ends_the_bench_with_the_problem(served: Served) -> None:
    with pytest.raises(SystemExit, match="422"):
        measure(served.url, [{"prompt": "a", "steps": 0}], rounds=1)


def test_a_server_that_ends_without_an_answer_is_told() -> None:
    async def ask() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            await stream_one(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", BODIES[0])

    with pytest.raises(SystemExit, match="closed the connection before it answered"):
        asyncio.run(ask())


def test_a_folder_that_is_not_there_is_named_before_anything_is_measured() -> None:
    refused = CliRunner().invoke(cli, ["absent.toml", "--json", "absent/a.json"])
    assert refused.exit_code == 2
    assert "there is no folder absent" in refused.stderr


@pytest.mark.shipped
def test_the_command_serves_the_deployment_and_prints_json_where_asked_for(built: Callable[..., Deployment]) -> None:
    options = ["--clients", "2", "--rounds", "1", "--seconds", "0.5", "--steps", "2"]
    command = [str(built(max_rows=16).path), *options]
    result = CliRunner().invoke(cli, [*command, "--json", "-"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["clients"] == 2
    assert "all_start_before_first_end" in result.stderr
    plain = CliRunner().invoke(cli, command)
    assert plain.stdout.startswith("clients ")
    assert [line.split(":")[0] for line in plain.stderr.splitlines()] == ["1/2 warm-up", "2/2 round 1"]


def test_figures_are_medians_of_the_rounds_behind_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients; alone each begins after 0.1 s and ends after 1 s, the second one of a pair begins late."""
    firsts_s, ended = iter((99.0, 0.5, 0.2, 1.5)), list[str]()

    async def alone(url: str, bodies: Any) -> list[StreamTiming]:
        ended.append("alone")
        return [StreamTiming(10.0, 10.1, 11.0, 1), StreamTiming(11.0, 11.1, 12.0 + len(ended), 1)]

    async def together(url: str, bodies: Any) -> list[StreamTiming]:
        ended.append("together")
        return [StreamTiming(5.0, 5.1, 6.0, 1), StreamTiming(5.0, 5.0 + next(firsts_s), 7.0, 1)]

    monkeypatch.setattr(http_bench, "run_sequentially", alone)
    monkeypatch.setattr(http_bench, "run_concurrently", together)
    assert measure("http://server", BODIES[:2], 3) == {
        "clients": 2, "rounds": 3, "sequential_s": 6.0, "concurrent_s": 2.0, "ratio": round(2 / 6, 4),
        "sequential_first_audio_s": 0.1, "concurrent_first_audio_s": 0.5, "all_start_before_first_end": False,
    }  # fmt: skip
    assert ended == ["together", *["alone", "together"] * 3]


def test_generations_differ_by_their_seed_and_have_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    @contextmanager
    def serve(config: Any) -> Iterator[Any]:
        yield SimpleNamespace(url=f"http://{config}")

    def measured(url: str, bodies: Any, rounds: int) -> dict[str, Any]:
        asked.append((url, bodies, rounds))
        return {"clients": len(bodies)}

    monkeypatch.setattr(http_bench, "server_process", serve)
    monkeypatch.setattr(http_bench, "measure", measured)
    for options in (["--clients", "2", "--steps", "3"], ["--clients", "1", "--seconds", "0.5", "--rounds", "1"]):
        assert CliRunner().invoke(cli, ["a.toml", *options]).stdout.split() == ["clients", options[1]]
    (_, first, rounds), (_, second, once) = asked
    assert (rounds, once, asked[0][0]) == (5, 1, "http://a.toml")
    assert [{**body, "prompt": ""} for body in (*first, *second)] == [
        {"prompt": "", "seed": 0, "steps": 3}, {"prompt": "", "seed": 1, "steps": 3},
        {"prompt": "", "seed": 0, "seconds": 0.5},
    ]  # fmt: skip


def test_the_first_audio_is_the_first_part_that_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that counts how often it is read."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\n\r\n")
        for part in (b"first", b"and", b"last"):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()

    async def run() -> StreamTiming:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            return await stream_one(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {"seed": 1})

    monkeypatch.setattr(http_bench, "time", SimpleNamespace(monotonic=count(1.0).__next__))
    assert asyncio.run(run()) == StreamTiming(1.0, 2.0, 3.0, len(b"firstandlast"))
