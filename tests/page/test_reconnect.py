"""When the page connects again after a loss, under node: the listeners of a lost server do not all come at once."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest
from helpers.paths import ROOT

PROGRAM = """
globalThis.location = { href: "http://127.0.0.1:1/" };
globalThis.sessionStorage = { getItem: () => null };
globalThis.setInterval = () => 0;
globalThis.fetch = async () => { throw new Error("no server"); };
const sockets = [], timers = [];
globalThis.WebSocket = class { constructor(url) { this.url = url; sockets.push(this); } close() {} send() {} };
globalThis.setTimeout = (call, ms) => { timers.push({ call, ms }); return 0; };
const { Connection } = await import(process.argv[1]);
const settle = () => new Promise((done) => setImmediate(done));
const ready = { type: "ready", session: "s", resume_token: "t", epoch: 0, resumed: false, controls: { values: {} } };

async function delays(edges, attempts) {
  timers.length = 0;
  const nothing = new Proxy({}, { get: () => () => ({ type: "open" }) });
  const connection = new Connection(nothing);
  connection.restart();
  sockets.at(-1).onmessage({ data: JSON.stringify({ ...ready, edges }) });
  for (let attempt = 0; attempt < attempts; attempt++) {
    sockets.at(-1).onclose();
    await settle();
    timers.at(-1).call();
  }
  return timers.map(({ ms }) => ms);
}
const all = { one: [], two: [] };
for (let i = 0; i < 200; i++) {
  all.one.push(await delays([], 8));
  all.two.push(await delays(["http://127.0.0.1:2"], 8));
}
console.log(JSON.stringify(all));
"""


def run_in_node(program: str) -> Any:
    """What a program that is given the page's connection.js prints, as JSON."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    command = [node, "--input-type=module", "-e", program, str(ROOT / "server/live/page/connection.js")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_time_until_it_connects_again_is_random_grows_and_is_bounded() -> None:
    found = run_in_node(PROGRAM)
    by_attempt = {name: list(zip(*delays, strict=True)) for name, delays in found.items()}
    one, two = by_attempt["one"], by_attempt["two"]
    assert 187.5 <= min(one[0]) < 210 < 290 < max(one[0]) <= 312.5
    assert min(one[2]) > max(one[0])
    assert max(one[7]) <= 1.25 * 5000
    for first in two[:2]:  # each address once
        assert 0 <= min(first) < 20 < 80 < max(first) <= 100
    assert min(two[2]) > max(two[1])


SLEEP = """
globalThis.location = { href: "http://127.0.0.1:1/" };
globalThis.sessionStorage = { getItem: () => null };
let watch, nowMs = 0;
globalThis.performance = { now: () => nowMs };
globalThis.setInterval = (call) => { watch = call; return 0; };
const sockets = [];
globalThis.WebSocket = class { constructor() { sockets.push(this); } close() { this.isClosed = true; } send() {} };
globalThis.setTimeout = () => 0;
const { Connection } = await import(process.argv[1]);
const nothing = new Proxy({}, { get: () => () => ({ type: "open" }) });
const connection = new Connection(nothing);
connection.restart();
const hear = (message) => sockets.at(-1).onmessage({ data: JSON.stringify(message) });
hear({ type: "ready", session: "s", resume_token: "t", epoch: 0, resumed: false, controls: { values: {} }, edges: [] });
hear({ type: "state", playing: false });
nowMs = 600_000;
connection.send({ type: "play" });
const closed = [];
for (const waitedMs of [0, 2000, 4000]) {
  nowMs = 600_000 + waitedMs;
  connection.ack(0, 0);
  watch();
  closed.push(Boolean(sockets[0].isClosed));
}
console.log(JSON.stringify(closed));
"""


def test_a_server_that_was_told_to_play_after_a_sleep_and_is_silent_is_given_up() -> None:
    """Nothing tells that a connection was lost meanwhile: the server has time to answer first."""
    assert run_in_node(SLEEP) == [False, False, True]
