"""A server in a process of its own: ready, measured, stopped."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
from helpers.factories import tiny_deployment

from profiling.server_process import server_process
from runtime.base.errors import EngineError
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


def test_a_program_is_ready_when_it_says_so_and_is_asked_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, collector = tmp_path / "ended", ["open"]
    monkeypatch.setattr(gc, "freeze", lambda: collector.append("frozen"))
    monkeypatch.setattr(gc, "unfreeze", lambda: collector.append("open"))
    settings = {"TICKRT_DEPTH": "3"}
    with server_process(ended, settings, options=("--target", "cpu"), program=("-c", SERVER)) as server:
        assert server.metrics() == {"a": 1.5, "b{c=x}{z=1}": 2.0}
        assert not ended.exists()
        assert collector == ["open", "frozen"], "clients are not stopped by a collection of all that is imported"
    assert not psutil.pid_exists(server.pid)
    words = ["--port", "0", "--log-level", "warning", "--target", "cpu"]
    assert json.loads(ended.read_text()) == [words, "3"], "SIGTERM came, and it had its options and settings"
    assert collector == ["open", "frozen", "open"]


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
