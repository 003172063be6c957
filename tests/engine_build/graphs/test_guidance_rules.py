"""Rules of guidance in the step graph against diffusers' guiders, over several steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from engine_build.graphs.step_graph import step_graph
from runtime.config.sampler import GuidanceSpec

pytestmark = pytest.mark.export

S, T, C, STEPS = 3, 50, 8, 5
SCALES, RESCALES = (3.0, 0.0, 9.5), (0.0, 0.4, 1.0)
Floats = NDArray[np.float32]


def found(spec: GuidanceSpec, positives: Floats, negatives: Floats) -> Floats:
    """The guided velocities `[STEPS, S, T, C]` of the step graph: from latents of 0, over a time of -1."""
    graph = step_graph(C, {"guidance", "rescale"}, guidance=spec)
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    curve = np.ones((S, T), np.float32)
    feeds: dict[str, Any] = {
        "latents": np.zeros((S, T, C), np.float32),
        "positive_rows": np.arange(S)[:, None],
        "negative_rows": np.arange(S, 2 * S)[:, None],
        "time": np.zeros(S, np.float32),
        "next_time": np.ones(S, np.float32),
        "velocity_scale": curve,
        "guidance": np.float32(SCALES)[:, None] * curve,
        "rescale": np.float32(RESCALES)[:, None] * curve,
    }
    if spec.rule == "apg":
        feeds |= {"momentum_state": np.zeros((S, T, C), np.float32), "momentum": np.float32(spec.momentum) * curve}
    made = []
    for step in range(STEPS):
        velocity = np.concatenate([positives[step], negatives[step]])
        results = dict(
            zip(
                [o.name for o in session.get_outputs()], session.run(None, {**feeds, "velocity": velocity}), strict=True
            )
        )
        made.append(results["next_latents"])
        if spec.rule == "apg":
            feeds["momentum_state"] = results["next_momentum_state"]
    return np.stack(made)


def expected(spec: GuidanceSpec, slot: int, positives: Floats, negatives: Floats) -> Floats:
    """Those of one slot by diffusers, `[STEPS, T, C]`."""
    import torch
    from diffusers.guiders import AdaptiveProjectedGuidance, ClassifierFreeGuidance
    from diffusers.guiders.adaptive_projected_guidance import MomentumBuffer

    if spec.rule == "plain":
        guider = ClassifierFreeGuidance(guidance_scale=SCALES[slot], guidance_rescale=RESCALES[slot])
    else:
        guider = AdaptiveProjectedGuidance(
            guidance_scale=SCALES[slot] - 1,
            adaptive_projected_guidance_momentum=spec.momentum,
            adaptive_projected_guidance_rescale=spec.norm_limit,
            adaptive_projected_guidance_norm_dim=(1,) if spec.norms == "channel" else None,
            eta=spec.parallel,
            guidance_rescale=RESCALES[slot] if spec.norms == "all" else 0.0,
            use_original_formulation=True,
        )
        guider.momentum_buffer = MomentumBuffer(spec.momentum)
    pairs = zip(positives[:, slot], negatives[:, slot], strict=True)
    made = [
        guider.forward(torch.from_numpy(p[None].copy()), torch.from_numpy(n[None].copy())).pred[0] for p, n in pairs
    ]
    return torch.stack(made).numpy()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "spec",
    [
        GuidanceSpec(rule="plain"),
        GuidanceSpec(norms="all"),
        GuidanceSpec(norms="all", momentum=0.5, norm_limit=20.0, parallel=0.25),
        GuidanceSpec(norms="all", momentum=0.0, norm_limit=0.0, parallel=1.0),
        GuidanceSpec(),
    ],
    ids=str,
)
def test_a_rule_is_that_of_diffusers(spec: GuidanceSpec) -> None:
    pytest.importorskip("diffusers")
    random = np.random.default_rng(11)
    positives, negatives = random.standard_normal((2, STEPS, S, T, C)).astype(np.float32) + np.float32(0.3)
    guided = found(spec, positives, negatives)
    # What diffusers rescales by is of a whole generation; of channels there is the first slot, which is not rescaled.
    for slot in range(S if spec.norms == "all" else 1):
        wanted = expected(spec, slot, positives, negatives)
        np.testing.assert_allclose(guided[:, slot], wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
