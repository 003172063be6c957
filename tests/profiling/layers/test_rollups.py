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
    by_kind,
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
    found = by_module(SMALL, 1)
    assert [row.layers for row in found] == [1, 1, 2, 1, 1]
    assert [row.share for row in found] == pytest.approx([ms / 6.875 for ms in (3.0, 2.0, 1.5, 0.25, 0.125)])
    rows = {row.name: row.ms for row in found}
    assert list(rows) == ["layers.1", UNKNOWN_MODULE, "layers.0", "out", WHOLE_MODEL], "the longest time is first"
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


def test_families_and_the_parts_of_blocks_are_by_time_the_longest_first() -> None:
    layers = {
        "a0": ("enc.0.norm", 1.0), "a1": ("enc.1.norm", 1.0), "a2": ("enc.1.mlp", 2.5),
        "b0": ("dec.0.norm", 2.0), "b1": ("dec.0.mlp", 3.0), "b2": ("dec.3.norm", 2.0), "b3": ("dec.3.mlp", 3.0),
    }  # fmt: skip
    first, second = by_block(profile(**layers))
    assert (first.prefix, first.indices, second.prefix) == ("dec", (0, 3), "enc")
    assert (list(first.parts), list(second.parts)) == (["mlp", "norm"], ["mlp", "norm"])
    assert (first.slowest, second.slowest) == ((0, 1.0), (1, 3.5 / 2.25))


def test_kinds_are_by_time() -> None:
    kinds = (("gemm", 1.0), ("pointwise", 0.5), ("gemm", 2.0), ("norm", 1.5))
    layers = [LayerTiming(f"{index}", "Add", kind, (ms,), ms / 5.0) for index, (kind, ms) in enumerate(kinds)]
    rows = by_kind(Profile("e", 1, tuple(layers), Wall((1.0,))))
    assert [(row.name, row.ms, row.share, row.layers) for row in rows] == [
        ("gemm", 3.0, 0.6, 2), ("norm", 1.5, 0.3, 1), ("pointwise", 0.5, 0.1, 1)
    ]  # fmt: skip


@pytest.mark.parametrize(("ratio", "is_slow"), [(1.09, False), (1.11, True)])
def test_a_block_is_slow_from_a_tenth_above_the_median_on(ratio: float, is_slow: bool) -> None:
    times = {f"l{index}": (f"net.layers.{index}.mlp", ratio if index == 2 else 1.0) for index in range(4)}
    assert by_block(profile(**times))[0].verdict.startswith("block 2 takes") is is_slow
