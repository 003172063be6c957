"""Server processes that benches start, clients over HTTP, and models at full size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
from helpers.factories import tiny_deployment
from helpers.http_harness import Served
from typer.testing import CliRunner

from profiling.full_size import MODELS, app, run_step
from profiling.http_bench import StreamTiming, bodies_of, cli, measure_clients, result_of_rounds, stream_one
from profiling.server_process import server_process
from runtime.base.errors import EngineError
from runtime.commands.terminal import EXIT_OVER_LIMIT
from runtime.config.deployment import Deployment

# What tickrt-serve prints and how it ends, and the first samples of /metrics, without what takes long.
SERVER = """
import http.server, json, os, signal, sys
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/metrics" else 404)
        self.end_headers()
        self.wfile.write(b'# TYPE a gauge\\na 1.5\\n# TYPE b gauge\\nb{z="1",c="x"} 2\\n')
    def log_message(self, *words):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Metrics)
def end(*_):
    open(sys.argv[1], "w").write(json.dumps([sys.argv[2:], os.environ["TICKRT_DEPTH"]]))
    os._exit(0)
signal.signal(signal.SIGTERM, end)
print("opening")
print(f"demo: ready on http://127.0.0.1:{server.server_port}")
server.serve_forever()
"""


def test_a_program_is_ready_when_it_says_so_and_is_asked_to_end(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    settings = {"TICKRT_DEPTH": "3"}
    with server_process(ended, settings, options=("--target", "cpu"), program=("-c", SERVER)) as server:
        assert server.metrics() == {"a": 1.5, "b{c=x}{z=1}": 2.0}
        assert not ended.exists()
    assert not psutil.pid_exists(server.pid)
    words = ["--port", "0", "--log-level", "warning", "--target", "cpu"]
    assert json.loads(ended.read_text()) == [words, "3"], "SIGTERM came, and it had its options and settings"


@pytest.mark.shipped
def test_it_answers_while_the_block_runs_and_is_gone_after(built: Callable[..., Deployment]) -> None:
    with server_process(built(max_rows=16).path, {"TICKRT_MAX_CONNECTIONS": "7"}) as server:
        with urlopen(f"{server.url}/health/ready") as answer:
            assert answer.status == 200
        metrics = server.metrics()
        assert metrics["tickrt_generations_started_total"] == 0
        assert metrics["tickrt_generations_total{outcome=ok}"] == 0
        assert psutil.Process(server.pid).environ()["TICKRT_MAX_CONNECTIONS"] == "7"
    assert not psutil.pid_exists(server.pid)


@pytest.mark.shipped
def test_a_server_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineError, match="ended with status 3 before it was ready"),
        server_process(tiny_deployment(tmp_path)),
    ):
        pass


BODIES = [{"prompt": "a", "seed": seed, "seconds": 0.5, "steps": 2} for seed in range(3)]


def test_both_ways_are_measured_with_all_clients(served: Served) -> None:
    before = served.metrics()["tickrt_generations_total{outcome=ok}"]
    result = measure_clients(served.url, BODIES, rounds=2)
    assert served.metrics()["tickrt_generations_total{outcome=ok}"] - before == 3 * (1 + 2 * 2)
    assert (result["clients"], result["rounds"]) == (3, 2)
    assert result["ratio"] == pytest.approx(result["concurrent_s"] / result["sequential_s"], rel=0.1)
    assert 0 < result["sequential_first_audio_s"] <= result["sequential_s"]
    assert 0 < result["concurrent_first_audio_s"] <= result["concurrent_s"]


def test_a_refused_generation_ends_the_bench_with_the_problem(served: Served) -> None:
    with pytest.raises(SystemExit, match="422"):
        measure_clients(served.url, [{"prompt": "a", "steps": 0}], rounds=1)


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


def test_figures_are_medians_of_the_rounds() -> None:
    """Two clients; alone each begins after 0.1 s and ends after 1 s, the second one of a pair begins late."""
    pairs = [
        (
            [StreamTiming(10.0, 10.1, 11.0, 1), StreamTiming(11.0, 11.1, end_s, 1)],
            [StreamTiming(5.0, 5.1, 6.0, 1), StreamTiming(5.0, 5.0 + first_s, 7.0, 1)],
        )
        for first_s, end_s in ((0.5, 14.0), (0.2, 16.0), (1.5, 18.0))
    ]
    assert result_of_rounds(pairs) == {
        "clients": 2, "rounds": 3, "sequential_s": 6.0, "concurrent_s": 2.0, "ratio": round(2 / 6, 4),
        "sequential_first_audio_s": 0.1, "concurrent_first_audio_s": 0.5, "all_start_before_first_end": False,
    }  # fmt: skip


def test_generations_differ_by_their_seed_and_have_what_was_asked_for() -> None:
    assert [{**body, "prompt": ""} for body in bodies_of(2, seconds=None, steps=3)] == [
        {"prompt": "", "seed": seed, "steps": 3} for seed in (0, 1)
    ]
    assert bodies_of(1, seconds=0.5)[0].keys() == {"prompt", "seed", "seconds"}


def test_the_first_audio_is_the_first_part_that_arrives() -> None:
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
            return await stream_one(
                f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {"seed": 1}, count(1.0).__next__
            )

    assert asyncio.run(run()) == StreamTiming(1.0, 2.0, 3.0, len(b"firstandlast"))


def test_a_step_has_its_time_its_peak_and_its_log(tmp_path: Path) -> None:
    work = "held = bytearray(300_000_000); import time; time.sleep(0.4)"
    result = run_step("model", "step", ("timeit", "-n", "1", "-r", "1", work), tmp_path / "log")
    assert result.status == "done"
    assert 0.3 < result.peak_gb < 0.6
    assert result.seconds >= 0.4
    assert "best of 1" in (tmp_path / "log").read_text()


def test_what_needs_a_failed_step_is_left_out_and_the_next_model_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in MODELS:
        monkeypatch.setitem(MODELS, name, ("acestep", "--nonsense"))
    ended = CliRunner().invoke(app, ["--out", str(tmp_path)])
    assert ended.exit_code == EXIT_OVER_LIMIT, ended.output
    steps = json.loads((tmp_path / "summary.json").read_text())
    assert [step["model"] for step in steps] == [name for name in MODELS for _ in range(5)]
    assert [step["status"].partition(":")[0] for step in steps[:5]] == ["failed", *["left out"] * 4]
    assert "--nonsense" in (tmp_path / "acestep-export.log").read_text()
