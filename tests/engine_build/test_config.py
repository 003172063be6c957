"""The [build] table, and shape ranges that contradict their bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.factories import tiny_deployment

from engine_build.compile.environment import BuildEnvironment
from engine_build.compile.rebuild_check import check_rebuilds
from engine_build.config import (
    ALL_STEP_FEATURES,
    KINDS,
    STEP_VARIANTS,
    BuildConfig,
    choose_precision,
    for_target,
    parse_variant,
)
from engine_build.request import load_request
from runtime.base.errors import ConfigError
from runtime.config.deployment import Deployment, Target, load_deployment


def edited(path: Path, *changes: tuple[str, str]) -> Path:
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def test_defaults(tmp_path: Path) -> None:
    request = load_request(tiny_deployment(tmp_path))
    assert request.options == BuildConfig()
    assert request.bundle.name == "tiny"
    assert len(STEP_VARIANTS) == 21


def test_the_build_table_is_read_and_threads_can_be_overridden(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path, more='[build]\noptimization = "basic"\nthreads = 3\ntolerance = 1e-3')
    assert load_request(path).options == BuildConfig(optimization="basic", threads=3, tolerance=1e-3)
    assert load_request(path, threads=1).options.threads == 1


def test_variants_are_sorted_unique_and_the_full_set_is_always_there() -> None:
    options = BuildConfig(step_variants=("guidance+dcw", "dcw+guidance", "plain"))
    assert options.step_variants == ("dcw+guidance", "plain", ALL_STEP_FEATURES)
    assert parse_variant("plain") == frozenset()


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('optimisation = "all"', "optimisation"),
        ('optimization = "fast"', "optimization"),
        ("tolerance = 0", "tolerance"),
        ("tolerance = nan", "tolerance"),
        ("threads = -1", "threads"),
        ('step_variants = ["magic"]', "unknown step features"),
        ('step_variants = ["rcfg"]', "guidance\\+rcfg"),
        ('capabilities = ["SM75"]', r"Turing \(SM75\) is too old"),
        ('capabilities = ["SM89", "SM90"]', "no RTX card has SM90, expected some of SM80, SM86, SM89, SM120, SM121"),
    ],
)
def test_a_wrong_build_table_names_the_file_and_the_key(tmp_path: Path, table: str, says: str) -> None:
    path = tiny_deployment(tmp_path, more=f"[build]\n{table}")
    with pytest.raises(ConfigError, match=says) as caught:
        load_request(path)
    assert str(path) in str(caught.value)
    assert "[build]" in str(caught.value)


@pytest.mark.parametrize(
    ("table", "target", "says"),
    [
        ('capabilities = ["SM89"]', "tensorrt", "capabilities is for the target tensorrt-rtx, not for tensorrt"),
        ("refit = true", "tensorrt-rtx", "refit is not for tensorrt-rtx: its engines take no other weights"),
        ("version_compatible = true", "tensorrt-rtx", "run on the release that built them"),
        ('hardware_compatibility = "ampere_plus"', "tensorrt-rtx", "are portable without it"),
        ('timing_cache = "timings"', "tensorrt-rtx", "timing_cache is not for tensorrt-rtx: it measures no kernels"),
        ('precision = "fp8"', "tensorrt-rtx", "compute capability 8.9 or later, and a portable engine is for earlier"),
        ('precision = "fp8"\ncapabilities = ["SM86", "SM89"]', "tensorrt-rtx", "8.9 or later, and SM86 is for earlier"),
        ('precision = "fp8"\nhardware_compatibility = "ampere_plus"', "tensorrt", '8.9 or later, and "ampere_plus"'),
        ('precision = "fp8"', "cuda", 'precision = "fp8" is not for the target cuda'),
    ],
)
def test_an_option_that_a_target_does_not_have_is_refused(
    tmp_path: Path, table: str, target: Target, says: str
) -> None:
    request = load_request(tiny_deployment(tmp_path, more=f"[build]\n{table}"))
    with pytest.raises(ConfigError, match=says) as caught:
        check_rebuilds(request, target, environment=BuildEnvironment())
    assert caught.value.fix
    check_rebuilds(request, "cpu")


@pytest.mark.parametrize(
    ("table", "target"),
    [
        ('precision = "fp8"\ncapabilities = ["SM89", "SM120"]', "tensorrt-rtx"),
        ('precision = "int8"', "tensorrt-rtx"),
        ('precision = "int8"\ntiming_cache = false', "tensorrt-rtx"),
        ('precision = "fp8"', "tensorrt"),
        ('precision = "int8"\nhardware_compatibility = "ampere_plus"', "tensorrt"),
    ],
)
def test_8_bits_where_all_cards_have_them(tmp_path: Path, table: str, target: Target) -> None:
    request = load_request(tiny_deployment(tmp_path, more=f"[build]\n{table}"))
    decoder = check_rebuilds(request, target, environment=BuildEnvironment())[0]
    assert decoder.wanted.build["precision"] == request.options.precision


@pytest.mark.parametrize(
    ("target", "flags", "chosen", "reason"),
    [
        ("cpu", {"avx2", "avx512_vnni", "amx_int8"}, "int8", "this processor has amx_int8, avx512_vnni"),
        ("cpu", {"avx_vnni"}, "int8", "this processor has avx_vnni"),
        ("cpu", {"avx2", "avx512f"}, "fp32", "this processor has none of amx_int8, avx512_vnni, avx_vnni"),
        ("cpu", {"asimddp"}, "fp32", "this processor has none of amx_int8, avx512_vnni, avx_vnni"),
        ("cuda", {"avx512_vnni"}, "bf16", "there is no GPU here, and one of a data centre is assumed"),
        ("tensorrt-rtx", set(), "fp16", "most RTX cards are GeForce cards, which are faster in it"),
    ],
)
def test_auto_is_8_bits_where_the_processor_is_faster_with_them(
    tmp_path: Path, target: Target, flags: set[str], chosen: str, reason: str
) -> None:
    deployment = load_deployment(tiny_deployment(tmp_path))
    assert choose_precision(deployment, target, flags) == (chosen, reason)


@pytest.mark.parametrize(
    ("name", "capability", "chosen"),
    [
        ("NVIDIA GeForce RTX 4090", "8.9", "fp16"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", "12.0", "fp16"),
        ("NVIDIA TITAN RTX", "7.5", "fp16"),
        ("NVIDIA H100 80GB HBM3", "9.0", "bf16"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9", "bf16"),
        ("Tesla T4", "7.5", "fp16"),
    ],
)
@pytest.mark.parametrize("target", ["cuda", "tensorrt"])
def test_auto_on_a_gpu_is_by_the_class_of_the_card(
    tmp_path: Path, target: Target, name: str, capability: str, chosen: str
) -> None:
    deployment = load_deployment(tiny_deployment(tmp_path))
    card = {"gpu": name, "compute_capability": capability}
    found = for_target(BuildConfig(precision="auto"), deployment, target, card)
    assert [found.of(kind).precision for kind in KINDS] == [chosen, "fp16", chosen, chosen]
    assert name in choose_precision(deployment, target, card=card).reason


def test_auto_is_float32_where_adapters_are_merged(tmp_path: Path) -> None:
    deployment = load_deployment(tiny_deployment(tmp_path)).model_copy(update={"merged_adapters": {"lofi": 1.0}})
    found = choose_precision(deployment, "cpu", {"avx512_vnni"})
    assert (found.precision, "adapters are merged" in found.reason) == ("fp32", True)


@pytest.mark.parametrize(("flags", "built"), [({"avx512_vnni"}, "int8"), ({"avx2"}, None)])
def test_engines_say_what_auto_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: set[str], built: str | None
) -> None:
    monkeypatch.setattr("engine_build.config.cpu_flags", lambda: flags)
    request = load_request(tiny_deployment(tmp_path, more='[build]\nprecision = "auto"'))
    decoder, *others = check_rebuilds(request, "cpu", environment=BuildEnvironment())
    assert decoder.wanted.build.get("precision") == built
    assert all("precision" not in other.wanted.build for other in others if other.spec.kind != "decoder")


def test_what_is_named_is_not_chosen(tmp_path: Path) -> None:
    deployment: Deployment = load_deployment(tiny_deployment(tmp_path))
    for table in ({"precision": "fp32"}, {"precision": {"decoder": "fp32", "codec": "bf16"}, "workspace_mib": 8}):
        options = BuildConfig.model_validate(table)
        chosen = for_target(options, deployment, "cpu")
        assert for_target(chosen, deployment, "cpu") == chosen
        assert all(chosen.of(kind) == options.of(kind) for kind in KINDS)


@pytest.mark.parametrize(
    ("table", "decoder", "codec", "encoders", "planner"),
    [
        ("", "fp32", "fp32", "fp32", "fp32"),
        ('precision = "bf16"', "bf16", "fp32", "bf16", "bf16"),
        ('precision = "int8"', "int8", "fp32", "bf16", "bf16"),
        ('precision = "fp8"', "fp8", "fp32", "bf16", "bf16"),
        ('precision = { decoder = "bf16", codec = "fp16" }', "bf16", "fp16", "fp32", "fp32"),
    ],
)
def test_one_precision_is_of_all_kinds_but_the_codec_a_table_has_one_per_kind(
    tmp_path: Path, table: str, decoder: str, codec: str, encoders: str, planner: str
) -> None:
    options = load_request(tiny_deployment(tmp_path, more=f"[build]\n{table}")).options
    assert [options.of(kind).precision for kind in KINDS] == [decoder, codec, encoders, planner]


@pytest.mark.parametrize(
    ("table", "target", "codec"),
    [
        ({}, "tensorrt", "fp32"),
        ({"precision": "tf32"}, "tensorrt", "fp32"),
        ({"precision": "bf16"}, "tensorrt", "fp16"),
        ({"precision": "int8"}, "tensorrt-rtx", "fp16"),
        ({"precision": "bf16"}, "cuda", "fp16"),
        ({"precision": "int8"}, "cpu", "fp32"),
        ({"precision": {"decoder": "fp16"}}, "cuda", "fp16"),
        ({"precision": {"decoder": "bf16", "codec": "auto"}}, "tensorrt", "fp16"),
        ({"precision": {"decoder": "bf16", "codec": "bf16"}}, "tensorrt", "bf16"),
    ],
)
def test_a_codec_is_fp16_on_gpus_beside_a_decoder_that_is_not_float32(
    tmp_path: Path, table: dict[str, Any], target: Target, codec: str
) -> None:
    deployment = load_deployment(tiny_deployment(tmp_path))
    assert for_target(BuildConfig.model_validate(table), deployment, target, {}).of("codec").precision == codec


@pytest.mark.parametrize(
    ("table", "target", "card", "levels"),
    [
        ({}, "tensorrt", {}, [3, 3, 3, 3]),
        ({}, "tensorrt", {"compute_capability": "9.0"}, [3, 3, 3, 3]),
        ({}, "tensorrt", {"compute_capability": "12.0"}, [3, 1, 3, 3]),
        ({"hardware_compatibility": "ampere_plus"}, "tensorrt", {"compute_capability": "8.6"}, [3, 1, 3, 3]),
        ({}, "tensorrt-rtx", {}, [3, 1, 3, 3]),
        ({"capabilities": ("SM86", "SM89")}, "tensorrt-rtx", {}, [3, 3, 3, 3]),
        ({"optimization_level": 2}, "tensorrt", {"compute_capability": "12.0"}, [2, 2, 2, 2]),
        ({"optimization_level": {"decoder": 4}}, "tensorrt", {"compute_capability": "12.1"}, [4, 1, 3, 3]),
        ({"optimization_level": {"codec": 3}}, "tensorrt", {"compute_capability": "12.0"}, [3, 3, 3, 3]),
    ],
)
def test_codecs_have_a_low_level_where_they_may_run_on_a_late_card(
    tmp_path: Path, table: dict[str, Any], target: Target, card: dict[str, str], levels: list[int]
) -> None:
    deployment = load_deployment(tiny_deployment(tmp_path))
    chosen = for_target(BuildConfig.model_validate(table), deployment, target, card)
    assert [chosen.of(kind).optimization_level for kind in KINDS] == levels


def test_capabilities_are_in_order_and_unique() -> None:
    assert BuildConfig(capabilities=("SM120", "SM86", "SM86")).capabilities == ("SM86", "SM120")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([("opt = 32, max = 64", "opt = 65, max = 64")], "min <= opt <= max"),
        ([("rows = { min = 1", "rows = { min = 0")], "rows.min"),
        ([("max = 8 }\nframes", "max = 0 }\nframes")], "rows.max"),
        ([("opt = 32, max = 64", "opt = 33, max = 64")], "frames.opt is 33, expected a multiple .* 2"),
        ([("opt = 32, max = 64", "opt = 32, max = 63")], "frames.max is 63"),
        ([("min = 2, opt = 32, max = 64", "min = 2, opt = 16, max = 30")], "canvas of 32 frames"),
        ([("opt = 8, max = 32", "opt = 8, max = 16")], "at most 16 tokens.*up to 32"),
        ([("tokens = { min = 1, opt = 8, max = 32 }", "")], "tokens"),
    ],
)
def test_contradictory_ranges_are_refused(tmp_path: Path, changes: list[tuple[str, str]], says: str) -> None:
    path = edited(tiny_deployment(tmp_path), *changes)
    with pytest.raises(ConfigError, match=says) as caught:
        load_request(path)
    assert str(path) in str(caught.value)
    assert "shapes" in str(caught.value)


def test_the_token_range_must_include_prefix_tokens(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path)
    edited(tmp_path / "tiny" / "bundle.toml", ("max_tokens = 32", "max_tokens = 30\nprefix_tokens = 3"))
    with pytest.raises(ConfigError, match=r"at most 32 tokens.*up to 33"):
        load_request(path)


@pytest.mark.parametrize("overlap", [7, 32])
def test_an_overlap_of_a_whole_canvas_is_refused(tmp_path: Path, overlap: int) -> None:
    with pytest.raises(ConfigError, match=f"overlap_frames is {overlap}"):
        load_request(tiny_deployment(tmp_path, overlap_frames=overlap))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("optimization_level = 6", "optimization_level: .*expected at most 5"),
        ("workspace_mib = 0", "workspace_mib: .*expected at least 1"),
        ('verbosity = "loud"', "verbosity: .*'none', 'layer_names' or 'detailed'"),
        ('precision = "int4"', "precision: .*'fp32', 'tf32', 'fp16', 'bf16', 'fp8' or 'int8'"),
        ('precision.codec = "int4"', r"precision.codec: expected 'auto'"),
        ('precision.codecs = "fp16"', "precision.codecs: is not a known name; did you mean codec"),
        ('precision.planner = "int8"', 'precision: planner = "int8": 8 bits are for decoders'),
        ("optimization_level.codec = 6", "optimization_level.codec: expected at most 5"),
        ("workspace_mib = { planner = 0 }", "workspace_mib.planner: expected at least 1"),
        ('codec_precision = "fp16"', "codec_precision: is not a known name"),
        ("inline_limit_bytes = 1", "inline_limit_bytes: is not a known name"),
        ("max_aux_streams = 0", "max_aux_streams: is not a known name"),
        ("tf32 = true", "tf32: is not a known name"),
        ("timing_cash = true", "timing_cash: is not a known name; did you mean timing_cache"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_request(tiny_deployment(tmp_path, more=f"[build]\n{line}"))
