"""Requests of clients that mean harm: what they send, from addresses of their own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any

import httpx
from helpers.word_lists import word_list

Address = tuple[str, int]
ATTACK_S = 6.0
JSON = {"content-type": "application/json"}
# Lists of words at which the tokenizer's rules once backtracked until native code panicked, by their seeds.
PANICS = tuple(word_list(seed, 1900) for seed in (68, 83, 112, 119, 126))
MCP_VERSION = "2026-07-28"
MCP_HEADERS = {**JSON, "accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
# A MIDI file of one track, whose first number goes on for 300,000 bytes.
LONG_DELTA = b"MThd\0\0\0\6\0\0\0\1\0\x60MTrk" + (300_004).to_bytes(4, "big") + b"\xff" * 300_000 + b"\0\xff\x2f\0"
# As many notes as a form of 60 kB has.
_NOTES = b"".join(b"\1\x90%c\x40\1\x80%c\x40" % (40 + n % 40, 40 + n % 40) for n in range(7_000))
MANY_NOTES = b"MThd\0\0\0\6\0\0\0\1\0\x60MTrk" + (len(_NOTES) + 4).to_bytes(4, "big") + _NOTES + b"\0\xff\x2f\0"


@contextmanager
def client_at(address: Address, source: str = "127.0.0.1", timeout_s: float = 60.0) -> Iterator[httpx.Client]:
    """A client of the server that comes from an address of its own."""
    transport = httpx.HTTPTransport(local_address=source)
    base_url = f"http://{address[0]}:{address[1]}"
    with httpx.Client(base_url=base_url, transport=transport, timeout=timeout_s) as client:
        yield client


def again_and_again(send: Callable[[httpx.Client, int], object], address: Address, source: str = "127.0.0.1") -> None:
    """One request after the other; what the server answers, or whether it does, does not matter."""
    ends_s = time.monotonic() + ATTACK_S
    with client_at(address, source) as client:
        for number in count():
            if time.monotonic() > ends_s:
                return
            with suppress(httpx.HTTPError):
                send(client, number)


def from_addresses(num: int, network: int, send: Callable[[httpx.Client, int], object], address: Address) -> None:
    """As many clients at a time, each of an address of its own."""
    with ThreadPoolExecutor(num) as pool:
        list(pool.map(partial(again_and_again, send, address), (f"127.{network}.0.{1 + n}" for n in range(num))))


def post(path: str, body: object) -> Callable[[httpx.Client, int], object]:
    """Posts JSON."""
    content = json.dumps(body).encode()
    return lambda client, number: client.post(path, content=content, headers=JSON)


def form_with(notes: bytes) -> Callable[[httpx.Client, int], object]:
    """Posts a form with a MIDI file."""
    files = {"request": (None, b'{"prompt": "a", "seconds": 1}'), "notes": ("a.mid", notes)}
    return lambda client, number: client.post("/v1/audio/generations", files=files)


def call(client: httpx.Client, tool: str, arguments: dict[str, Any]) -> Any:
    """What a tool of /mcp answers, without a session."""
    about = {"io.modelcontextprotocol/protocolVersion": MCP_VERSION, "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"name": tool, "arguments": arguments, "_meta": about}
    headers = {**MCP_HEADERS, "mcp-protocol-version": MCP_VERSION, "mcp-method": "tools/call", "mcp-name": tool}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answer = client.post("/mcp", json=body, headers=headers)
    answer.raise_for_status()
    text = answer.text.partition("data: ")[2] if answer.text.startswith(("event:", "data:", ":")) else answer.text
    return json.loads(text.splitlines()[0])


def initialize(address: Address, source: str) -> int:
    """The status that an assistant gets that begins a session."""
    with client_at(address, source) as client:
        return client.post("/mcp", json=INITIALIZE, headers=MCP_HEADERS).status_code


def stems(client: httpx.Client, number: int) -> object:
    """Asks for the stems of a session that plays."""
    sessions = client.get("/v1/sessions").json()["data"]
    return client.get(f"/v1/sessions/{sessions[0]['id']}/stems")


UNKNOWN = {f"a{number}": 1 for number in range(14_000)}
# By kind: what is sent, from how many addresses at a time.
REQUESTS: dict[str, tuple[int, Callable[[httpx.Client, int], object]]] = {
    "keys-of-150000-spaces": (4, post("/release_task", {"prompt": "a", "key_scale": "A" + " " * 150_000 + "x"})),
    "lyrics-of-brackets": (4, post("/release_task", {"prompt": "a", "lyrics": "[" * 8192})),
    "tools-with-unknown-arguments": (4, lambda client, number: call(client, "generate", UNKNOWN)),
    "a-time-of-300000-bytes": (2, form_with(LONG_DELTA)),
    "forms-with-7000-notes": (16, form_with(MANY_NOTES)),
    "stems-of-one-session": (16, stems),
}
