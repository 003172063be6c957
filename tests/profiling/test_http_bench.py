from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from helpers.http_harness import Served
from typer.testing import CliRunner

from profiling.http_bench import StreamTiming, cli, measure, span_s
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
