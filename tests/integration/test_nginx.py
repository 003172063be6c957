"""The server behind nginx with its default buffers (make test-scale): all headers fit into them."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.cluster import needs_programs
from helpers.http_harness import GENERATIONS, eventually, serving

from runtime.config.deployment import Deployment
from server.cluster.local_cluster import find_program, free_port

pytestmark = [pytest.mark.slow, needs_programs("nginx")]
CONFIG = """
daemon off; pid nginx.pid; error_log stderr;
events {{}}
http {{
    access_log off;
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {url}; }} }}
}}
"""
NOTES = [
    {"layer": "melody", "pitch": 60 + number % 12, "start_s": number / 11, "seconds": 0.1234567} for number in range(40)
]


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def nginx(url: str, folder: Path) -> Iterator[str]:
    """The address of an nginx before the server at `url`."""
    port = free_port()
    (folder / "nginx.conf").write_text(CONFIG.format(port=port, url=url))
    with subprocess.Popen([str(find_program("nginx")), "-p", str(folder), "-c", "nginx.conf"]) as process:
        try:
            eventually(lambda: is_open(port))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def proxied(built_demo: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        serving(built_demo) as served,
        nginx(served.url, tmp_path_factory.mktemp("nginx")) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "ukulele claps for a product video about cats"},
        {"prompt": ", ".join(f"w\u00f6rd{number}" for number in range(200))},
        {"prompt": 8 * [{"text": "drums, bass, techno, fast"}], "blend": "tokens"},
        {"prompt": "a", "notes": NOTES},
        {"prompt": "a", "guidance": [round(1.0001 + number / 1000, 4) for number in range(500)]},
    ],
    ids=["caption", "words", "prompts", "notes", "curve"],
)
def test_a_generation_passes_the_default_buffers(proxied: httpx.Client, body: dict[str, Any]) -> None:
    response = proxied.post(GENERATIONS, json={"seed": 1, "seconds": 4, **body})
    assert response.status_code == 200, response.text
    card = proxied.get(f"{GENERATIONS}/{response.headers['x-generation-id']}").json()
    assert card["options"] == {"seed": 1, "seconds": 4, **body}
