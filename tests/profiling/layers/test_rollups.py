"""Rollups by module and across equal blocks, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.recorded_profiles import recorded

from profiling.layers.rollups import (
    SEVERAL,
    UNKNOWN_MODULE,
    WHOLE_BLOCK,
    WHOLE_MODEL,
    BlockTimes,
    block_of,
    by_block,
    by_module,
    module_parts,
    shown_module,
)
from profiling.layers.timings import LayerTiming, Profile, Wall


def profile(**modules: tuple[str | None, float]) -> Profile:
    """Layers by name: (module, ms)."""
    whole = sum(ms for _, ms in modules.values())
    layers = [LayerTiming(name, "Add", "pointwise", (ms,), ms / whole, path) for name, (path, ms) in modules.items()]
    return Profile("e", 1, tuple(layers), Wall((1.0,)))


SMALL = profile(
    a=("net.layers.0.mlp.up", 1.0),
    b=("net.layers.0", 0.5),
    c=("net.layers.1.mlp", 3.0),
    d=("net.out", 0.25),
    e=("net", 0.125),
    f=(None, 2.0),
)


def test_modules_at_a_depth_below_the_common_root() -> None:
    rows = {row.name: row.ms for row in by_module(SMALL, 1)}
    assert rows == {"layers.1": 3.0, UNKNOWN_MODULE: 2.0, "layers.0": 1.5, "out": 0.25, WHOLE_MODEL: 0.125}
    deep = {row.name: row.ms for row in by_module(SMALL, 2)}
    assert (deep["layers.0"], deep["layers.0.mlp"], deep["layers.1.mlp"]) == (0.5, 1.0, 3.0)


def test_a_layer_across_several_parts_has_a_row_of_its_own() -> None:
    assert shown_module("net", 1, 2, is_wide=True) == SEVERAL
    assert shown_module("net.layers.0", 1, 2, is_wide=True) == f"layers.0.{SEVERAL}"
    # Projections of one attention, shown as deep as the attention: nothing is lost.
    assert shown_module("net.layers.0.attn", 1, 2, is_wide=True) == "layers.0.attn"
    assert shown_module("net.layers.0", 1, 2) == "layers.0"


def test_a_number_belongs_to_the_name_before_it() -> None:
    assert module_parts("net.layers.3.mlp.0") == ["net", "layers.3", "mlp.0"]
    assert module_parts("") == []


def test_blocks_side_by_side() -> None:
    (blocks,) = by_block(SMALL)
    assert (blocks.prefix, blocks.indices) == ("net.layers", (0, 1))
    assert blocks.parts == {"mlp": BlockTimes((1.0, 3.0)), WHOLE_BLOCK: BlockTimes((0.5, 0.0))}
    assert blocks.whole == BlockTimes((1.5, 3.0))


def test_the_outermost_number_makes_the_block() -> None:
    assert block_of("net.layers.3.mlp.0") == ("net.layers", 3, "mlp")
    assert block_of("net.layers.3") == ("net.layers", 3, WHOLE_BLOCK)
    assert block_of("net.out") is None
    assert block_of(None) is None


def test_a_single_block_is_not_compared() -> None:
    assert by_block(profile(a=("net.layers.0", 1.0), b=("net.out", 1.0))) == []


def test_a_slow_block_is_named() -> None:
    equal = {f"l{index}": (f"net.layers.{index}.mlp", 1.0) for index in range(8)}
    assert "no block is slower" in by_block(profile(**equal))[0].verdict
    (blocks,) = by_block(profile(**equal | {"l7": ("net.layers.7.mlp", 1.5)}))
    assert blocks.verdict == "block 7 takes 1.50 of the median"


def test_a_single_slow_execute_makes_no_slow_block() -> None:
    times = {"0": (1.0, 1.0, 1.0), "1": (1.0, 40.0, 1.0)}
    layers = [LayerTiming(index, "Add", "pointwise", ms, 0.5, f"net.layers.{index}.mlp") for index, ms in times.items()]
    (blocks,) = by_block(Profile("e", 3, tuple(layers), Wall((1.0,))))
    assert blocks.whole == BlockTimes((1.0, 1.0))
    assert "no block is slower" in blocks.verdict


@pytest.mark.parametrize(("version", "slow"), [("10", False), ("11", True)])
def test_the_recorded_blocks(version: str, slow: bool, tmp_path: Path) -> None:
    """In the recording of 11.x the second block's product takes twice as long."""
    (blocks,) = by_block(recorded(version, tmp_path))
    assert (blocks.prefix, blocks.indices, set(blocks.parts)) == (
        "decoder.layers",
        (0, 1),
        {"norm", "attn", "mlp", WHOLE_BLOCK},
    )
    first, second = blocks.parts["mlp"].median_ms
    assert second / first == pytest.approx(2.0 if slow else 1.0)
