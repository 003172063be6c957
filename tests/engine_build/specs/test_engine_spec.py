from __future__ import annotations

from pathlib import Path

from helpers.factories import tiny_deployment

from engine_build.config import load_request
from engine_build.specs.engine_spec import input_shapes, sizes_at
from engine_build.specs.engine_specs import engine_specs


def test_the_shapes_of_inputs_at_the_ends_of_a_range(tmp_path: Path) -> None:
    decoder = engine_specs(load_request(tiny_deployment(tmp_path)))[0]
    least, most = (input_shapes(decoder, sizes_at(decoder, decoder.ranges[0], end)) for end in (0, 2))
    assert (least["hidden_states"], most["hidden_states"]) == ((1, 2, 8), (8, 64, 8))
    assert (decoder.name, decoder.kind) == ("decoder", "decoder")
