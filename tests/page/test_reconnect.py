"""When the page connects again after a loss, under node: the listeners of a lost server do not all come at once."""

from __future__ import annotations

import json
import shutil
import subprocess

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


def test_the_time_until_it_connects_again_is_random_grows_and_is_bounded() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    command = [node, "--input-type=module", "-e", PROGRAM, str(ROOT / "server/live/page/connection.js")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    by_attempt = {name: list(zip(*delays, strict=True)) for name, delays in found.items()}
    one, two = by_attempt["one"], by_attempt["two"]
    assert 187.5 <= min(one[0]) < 210 < 290 < max(one[0]) <= 312.5
    assert min(one[2]) > max(one[0])
    assert max(one[7]) <= 1.25 * 5000
    for first in two[:2]:  # each address once
        assert 0 <= min(first) < 20 < 80 < max(first) <= 100
    assert min(two[2]) > max(two[1])
