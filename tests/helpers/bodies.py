"""A graph with bodies in bodies, whose work lies in them: Loop, If in it, a Loop in that, and Scan."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, numpy_helper, parser

SIZE, TIMES = 48, 4
_TEXT = """
<ir_version: 9, opset_import: ["" : 18]>
bodies (float[SIZE,SIZE] x, bool chosen) => (float[SIZE,SIZE] y)
{
  times = Constant <value = int64 {TIMES}> ()
  yes = Constant <value = bool {1}> ()
  [loop] a, kept = Loop (times, yes, x) <body = in_loop_body (int64 i, bool go, float[SIZE,SIZE] s) =>
      (bool goes, float[SIZE,SIZE] t, float[SIZE,SIZE] keep) {
    [goes] goes = Identity (go)
    [in_loop] u = MatMul (s, x)
    [if] t = If (chosen) <
      then_branch = yes_body () => (float[SIZE,SIZE] v) {
        [in_then] w = MatMul (u, x)
        [inner_loop] v = Loop (times, yes, w) <body = inner (int64 j, bool on, float[SIZE,SIZE] p) =>
            (bool ons, float[SIZE,SIZE] q) {
          [ons] ons = Identity (on)
          [in_inner_loop] q = MatMul (p, weight)
        }>
      },
      else_branch = no_body () => (float[SIZE,SIZE] r) { [in_else] r = Relu (u) }>
    [keep] keep = MatMul (t, x)
  }>
  [scan] b, all = Scan <num_scan_inputs = 1, body = in_scan_body (float[SIZE,SIZE] c, float[SIZE,SIZE] d) =>
      (float[SIZE,SIZE] e, float[SIZE,SIZE] f) {
    [in_scan] e = MatMul (c, d)
    [f] f = Identity (e)
  }> (a, kept)
  [outside] y = MatMul (b, x)
}
"""


def with_bodies() -> ModelProto:
    """x [SIZE, SIZE], chosen [] -> y [SIZE, SIZE]; each body runs TIMES times, the innermost TIMES * TIMES."""
    model = parser.parse_model(_TEXT.replace("SIZE", str(SIZE)).replace("{TIMES}", f"{{{TIMES}}}"))
    model.graph.initializer.append(numpy_helper.from_array(np.eye(SIZE, dtype=np.float32), "weight"))
    return model
