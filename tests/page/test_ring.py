"""The page's ring, under node, with the operations that AudioRing is tested with."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from helpers.paths import ROOT

VECTORS = ROOT / "tests/data/audio_ring.json"
PROGRAM = """
import { readFileSync } from "node:fs";
const { AudioRing } = await import(process.argv[1]);
const vectors = JSON.parse(readFileSync(process.argv[2], "utf8"));
const properties = { playhead_sample: "playheadSample", end_sample: "endSample", late_samples: "lateSamples",
  missing_samples: "missingSamples", underruns: "underruns" };
const apply = (ring, operation) => {
  switch (operation.op) {
    case "write": return { taken: ring.write(operation.start_sample, Float32Array.from(operation.pcm.flat())) };
    case "clear": ring.clear(operation.start_sample); return {};
    case "take_worst_lead": {
      const lead_s = ring.lead / vectors.sample_rate_hz;
      return { lead_s, worst_lead_s: ring.takeWorstLeadS() };
    }
    case "read": {
      const planes = Array.from({ length: vectors.channels }, () => new Float32Array(operation.samples));
      const missing = ring.read(planes);
      return { missing, pcm: Array.from(planes[0], (_, i) => planes.map((plane) => plane[i])) };
    }
  }
  const names = Object.keys(operation).filter((name) => name !== "op");
  return Object.fromEntries(names.map((name) => [name, name === "lead_s" ? ring.lead / vectors.sample_rate_hz
    : ring[properties[name]]]));
};
const results = vectors.cases.map((one) => {
  const ring = new AudioRing(vectors.sample_rate_hz, vectors.channels, vectors.capacity_s, one.start_sample);
  return one.operations.map((operation) => apply(ring, operation));
});
console.log(JSON.stringify(results));
"""
CASES = json.loads(VECTORS.read_text(encoding="utf-8"))["cases"]


@pytest.fixture(scope="module")
def results() -> list[list[dict[str, object]]]:
    """What the page's ring gives, per case and operation."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    ring = (ROOT / "server/live/page/audio/ring.js").as_uri()
    done = subprocess.run(
        [node, "--input-type=module", "--eval", PROGRAM, ring, str(VECTORS)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: list[list[dict[str, object]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("index", range(len(CASES)), ids=[case["name"] for case in CASES])
def test_vectors(results: list[list[dict[str, object]]], index: int) -> None:
    for operation, given in zip(CASES[index]["operations"], results[index], strict=True):
        for name, value in given.items():
            expected = operation[name]
            if name == "pcm":
                for row, expected_row in zip(value, expected, strict=True):  # type: ignore[call-overload]
                    assert row == pytest.approx(expected_row, abs=1e-5)
            else:
                assert value == pytest.approx(expected, abs=1e-5), f"{operation['op']}: {name}"
