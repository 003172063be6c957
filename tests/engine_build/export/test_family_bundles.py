"""Families of a stranger as bundles: every kind of decoder and codec, and modules that cannot be exported."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT
from helpers.tiny_exports import TinyExports

from engine_build.export.bundle_export import (
    REMEDIES,
    BundleExport,
    ExportOptions,
    ExportStep,
    Facts,
    Parts,
    write_bundle,
)
from engine_build.export.cleanup import paths_in
from runtime.base.errors import BuildError, ConfigError, TickError
from runtime.config.bundle import BUNDLE_FILE, Bundle, load_bundle
from runtime.config.deployment import load_deployment

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from torch import Tensor, nn  # noqa: E402

from engine_build.export.codec_graphs import CodecLayout, codec_facts  # noqa: E402
from engine_build.export.decoder_graph import decoder_step  # noqa: E402

CHANNELS, WIDTH, HOP = 4, 6, 8
ONE = {"min": 1, "opt": 1, "max": 1}
RATE = {"frame_rate_hz": 25.0}
FACTS: Facts = {"channels": CHANNELS, **RATE, "inputs": {"latents": "latents", "time": "time"}}
Export = Callable[[Any, Path, Facts], Facts]


def written(folder: Path, *steps: Export, say: Callable[[str], object] = str, **make: Any) -> Bundle:
    """A bundle of these steps in `folder`, with a deployment beside it."""
    export = BundleExport(Parts(make, "1"), [ExportStep(f"step {n}", (), step) for n, step in enumerate(steps)])
    facts = write_bundle(export, folder, ExportOptions("mine", 2.0, description="Mine."), say)
    path = folder.with_name(f"{folder.name}.toml")
    path.write_text(facts.deployment_text(folder, path))
    assert load_deployment(path).bundle == folder
    return load_bundle(folder)


def decoder_of(module: nn.Module, **sizes: Any) -> Export:
    return lambda source, folder, facts: {**decoder_step(module, folder, channels=CHANNELS, **sizes), **RATE}


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        return self.mix(latents) * time[:, None, None]


class Vector(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, CHANNELS)

    def forward(self, time: Tensor, condition: Tensor, latents: Tensor) -> Tensor:  # type: ignore[override]
        return self.mix(latents) * time[:, None, None] + self.project(condition)[:, None]


class Tokens(Vector):
    def forward(  # type: ignore[override]
        self, latents: Tensor, time: Tensor, condition: Tensor, condition_mask: Tensor, context: Tensor
    ) -> Tensor:
        tokens = self.project(condition)  # [R, L, C]
        scores = latents @ tokens.transpose(1, 2) + (condition_mask[:, None] - 1.0) * 1e4
        known, mask = context.chunk(2, dim=-1)
        return self.mix(latents) + scores.softmax(-1) @ tokens * time[:, None, None] + known * (1.0 - mask)


class Pairs(Plain):
    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        pairs = latents.unflatten(1, (-1, 2))
        return (self.mix(pairs) + pairs.flip(2)).flatten(1, 2) * time[:, None, None]


@pytest.mark.parametrize(
    ("module", "sizes", "roles", "tokens"),
    [
        (Plain, {}, {"latents", "time"}, ONE),
        (Pairs, {"frame_multiple": 2}, {"latents", "time"}, ONE),
        (Vector, {"condition_width": WIDTH, "tokens": None}, {"latents", "time", "condition"}, ONE),
        (
            Tokens,
            {"condition_width": WIDTH},
            {"latents", "time", "condition", "condition_mask", "context"},
            {"min": 1, "opt": 32, "max": 64},
        ),
        (
            Tokens,
            {"condition_width": WIDTH, "tokens": (5, 5)},
            {"latents", "time", "condition", "condition_mask", "context"},
            {"min": 5, "opt": 5, "max": 5},
        ),
    ],
)
def test_every_kind_of_decoder_is_a_bundle_without_a_codec(
    tmp_path: Path, module: Any, sizes: Any, roles: set[str], tokens: Any
) -> None:
    bundle = written(tmp_path / "b", decoder_of(module(), **sizes))
    assert bundle.codec is None
    assert bundle.guidance.rule == "plain"
    assert {role for role, name in bundle.decoder.inputs if name} == roles
    assert bundle.training["decoder_max_error"] < 1e-5
    (shape,) = load_deployment(tmp_path / "b.toml").shapes
    assert shape.model_dump()["tokens"] == tokens


class Frames(nn.Module):
    """Latents to audio: a frame is heard in those beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.smooth = nn.Conv1d(CHANNELS, HOP, 3, padding=1)

    def forward(self, latents: Tensor) -> Tensor:
        return self.smooth(latents.transpose(1, 2)).transpose(1, 2).flatten(1)[:, None]


class Blocks(nn.Module):
    """Audio to latents, frame by frame."""

    def __init__(self) -> None:
        super().__init__()
        self.fold = nn.Linear(HOP, CHANNELS)

    def forward(self, audio: Tensor) -> Tensor:
        return self.fold(audio.unflatten(2, (-1, HOP))[:, 0])


@pytest.mark.parametrize("encode", [None, Blocks])
def test_a_codec_may_have_a_decoder_alone(tmp_path: Path, encode: Any) -> None:
    def codec(source: Any, folder: Path, facts: Facts) -> Facts:
        layout = CodecLayout(200, 1, HOP, CHANNELS)
        return codec_facts(layout, Frames(), encode and encode(), folder, facts["channels"])

    bundle = written(tmp_path / "b", decoder_of(Plain()), codec)
    assert bundle.codec is not None
    assert (bundle.codec.sample_rate_hz, bundle.codec.hop_samples, bundle.codec.decode.margin_frames) == (200, HOP, 1)
    assert (bundle.codec.encode is None) == (encode is None)


class Inner(nn.Module):
    """Holds a module that fails, two levels down."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Identity(), inner])

    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        return self.blocks[1](self.blocks[0](latents), time)


class Branches(Plain):
    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        return self.mix(latents) if latents.sum() > 0 else latents


class Item(Plain):
    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        return latents * time.max().item() if time.max().item() > 0.5 else latents


class Fixed(Plain):
    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        return self.mix(latents) if latents.shape[1] == 32 else latents


class Loop(Plain):
    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        return torch.stack([self.mix(latents[:, frame]) for frame in range(latents.shape[1])], 1)


class Table(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.randn(17, CHANNELS))

    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        return self.mix(latents) + self.positions[: latents.shape[1]]


class Airy(Plain):
    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        return torch.special.airy_ai(self.mix(latents)) + time[:, None, None]


class Scripted(Plain):
    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.mix = torch.jit.script(nn.Linear(CHANNELS, CHANNELS))


class Dropout(Plain):
    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        return nn.functional.dropout(self.mix(latents), 0.5, training=True)


class Longer(Plain):
    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        return self.mix(latents) if latents.shape[1] > 20 else latents


class Wrong(Plain):
    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        return self.mix(latents[..., 1:])


class Strange(Plain):
    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        raise {"not": "a usual error"}["is"]  # type: ignore[misc]


KINDS: list[tuple[Any, str]] = [
    (Branches, "torch cannot export Inner.blocks.1 (Branches): GuardOnDataDependentSymNode: Could not guard on"),
    (Item, "torch cannot export Inner.blocks.1 (Item): GuardOnDataDependentSymNode: Could not guard on"),
    (Fixed, "torch exports Inner for sizes of the example alone: axis 1 of latents is a constant, 32"),
    (Loop, "torch exports Inner for sizes of the example alone: axis 1 of latents is a constant, 32"),
    (Table, "torch cannot export Inner: ValueError: The following inconsistencies were found: Eq(s"),
    (Airy, "torch cannot export Inner: DispatchError: No ONNX function found for"),
    (Scripted, "torch cannot export Inner.blocks.1.mix (RecursiveScriptModule): TypeError"),
    (Dropout, "decoder.onnx differs from its module by"),
    (Longer, "decoder.onnx differs from its module by"),
    (Wrong, "there is no output of Inner.blocks.1.mix (Linear): RuntimeError: mat1 and mat2 shapes"),
    (Strange, "there is no output of Inner.blocks.1 (Strange): KeyError: 'is'"),
]


def rows_of(fix: str) -> list[list[str]]:
    """What errors say, by the rows of the section that a fix names."""
    name, _, title = fix.removeprefix("see ").partition(', "')
    text = (ROOT / name).read_text(encoding="utf-8").partition(f"#### {title.partition(chr(34))[0]}\n")[2]
    table = text.partition("|---|---|---|\n")[2].partition("\n\n")[0]
    return [re.findall(r"`([^`]+)`", line.split("|")[1]) for line in table.splitlines()]


@pytest.mark.parametrize(("kind", "says"), KINDS)
def test_a_module_that_cannot_be_exported_ends_in_a_sentence_and_a_row_of_a_page(
    tmp_path: Path, kind: Any, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    with pytest.raises(BuildError) as found:
        written(tmp_path / "b", lambda *_: {"license": "free"}, decoder_of(Inner(kind())), say=said.append)
    what, fix = found.value.what, found.value.fix
    assert says in what
    assert "\n" not in what
    assert "\x1b" not in what
    assert kind is Strange or any(text in what for row in rows_of(fix) for text in row)
    is_traced = "differs" not in what
    assert is_traced == ("b.export.log" in fix) == (tmp_path / "b.export.log").exists()
    assert not is_traced or "Traceback (most recent call last)" in (tmp_path / "b.export.log").read_text()
    assert capfd.readouterr() == ("", "")
    assert said[-1] == "kept for the next run: step 0"
    assert not (tmp_path / "b").exists()


def test_every_row_of_the_page_is_about_an_error_that_there_is() -> None:
    rows = rows_of(f"see {REMEDIES}")
    shown = [*(says for _, says in KINDS), "is inconsistent", "cannot be multiplied"]
    assert len(rows) > 5
    assert not [row for row in rows if not any(text in says for text in row for says in shown)]


def raising(error: BaseException) -> Export:
    def step(*_: Any) -> Facts:
        raise error

    return step


@pytest.mark.parametrize(
    "error",
    [KeyError("width"), RuntimeError("a\nb"), OSError("no file named config.json"), AssertionError(), TypeError("x")],
)
def test_what_a_familys_own_code_raises_ends_in_a_sentence_and_a_log(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(BuildError, match=f"step 0: {type(error).__name__}") as found:
        written(tmp_path / "b", raising(error))
    assert "\n" not in found.value.what
    assert type(error).__name__ in (tmp_path / "b.export.log").read_text()


@pytest.mark.parametrize(
    "error", [ConfigError("no", fix="yes"), BuildError("no", fix="yes"), FileNotFoundError(2, "x")]
)
def test_what_is_told_already_stays_as_it_is(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as found:
        written(tmp_path / "b", raising(error))
    assert found.value is error
    assert not (tmp_path / "b.export.log").exists()


def test_facts_that_are_missing_or_unknown_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"return no frame_rate_hz and heads, unknown") as found:
        written(tmp_path / "b", lambda *_: {"channels": 4, "heads": 2})
    assert "decode_margin_frames" in found.value.fix


def test_an_argument_that_is_no_role_is_refused_with_the_roles(tmp_path: Path) -> None:
    class Named(Plain):
        def forward(self, hidden_states: Tensor, time: Tensor) -> Tensor:
            return self.mix(hidden_states)

    with pytest.raises(TickError, match=r"Named\.forward takes hidden_states") as found:
        written(tmp_path / "b", decoder_of(Named()))
    assert "latents, time, condition, condition_mask, context" in str(found.value)


def test_tables_of_the_family_are_added_and_replace(tmp_path: Path) -> None:
    tables = {"sampler": {"steps": 3}, "latents": {"most_unused": 0.1}}
    bundle = written(tmp_path / "b", lambda *_: FACTS, lambda *_: {"tables": tables})
    assert (bundle.sampler.steps, bundle.latents.channels) == (3, CHANNELS)
    assert re.search(r"^most_unused = 0.1$", (tmp_path / "b" / BUNDLE_FILE).read_text(), re.MULTILINE)


def test_a_table_that_is_wrong_is_told_at_the_export_and_replaces_nothing(tmp_path: Path) -> None:
    written(tmp_path / "b", lambda *_: FACTS)
    before = (tmp_path / "b" / BUNDLE_FILE).read_text()
    said: list[str] = []
    with pytest.raises(ConfigError, match="stepz"):
        written(tmp_path / "b", lambda *_: FACTS, lambda *_: {"tables": {"sampler": {"stepz": 3}}}, say=said.append)
    assert (tmp_path / "b" / BUNDLE_FILE).read_text() == before
    assert said[-1] == "kept for the next run: step 0, step 1"


def test_a_step_may_be_any_callable_and_a_source_that_fails_is_told(tmp_path: Path) -> None:
    def tables(steps: int, *_: Any) -> Facts:
        return {"tables": {"sampler": {"steps": steps}}}

    class Step:
        def __call__(self, *_: Any) -> Facts:
            return {"license": "free"}

    bundle = written(tmp_path / "b", lambda *_: FACTS, partial(tables, 5), Step())
    assert (bundle.sampler.steps, bundle.license) == (5, "free")

    class Source(Parts):
        def fingerprint(self) -> str:
            raise LookupError("no weights")

    with pytest.raises(BuildError, match="source: LookupError: no weights"):
        write_bundle(BundleExport(Source({}, "1"), []), tmp_path / "c", ExportOptions("c"), str)


def test_a_second_run_goes_on_behind_what_the_first_completed(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path / "b", lambda *_: FACTS, raising(KeyboardInterrupt()), say=said.append)
    assert said[-1] == "kept for the next run: step 0"
    assert not (tmp_path / "b").exists()
    written(tmp_path / "b", raising(AssertionError("it is complete")), lambda *_: {"license": "free"}, say=said.append)
    assert "step 0: complete since an earlier run" in said
    assert load_bundle(tmp_path / "b").license == "free"


def test_a_folder_with_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "songs").write_text("mine")
    with pytest.raises(ConfigError, match="is not a bundle: it is not replaced"):
        written(tmp_path, lambda *_: FACTS)
    assert (tmp_path / "songs").read_text() == "mine"


def test_a_codec_of_another_decoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="takes latents of 6 channels, the vae has 4"):
        codec_facts(CodecLayout(200, 1, HOP, CHANNELS), Frames(), Blocks(), tmp_path, 6)


def test_bundles_contain_no_paths(tiny: TinyExports) -> None:
    for folder in (tiny.acestep_bundle(), *map(tiny.stable_audio_bundle, ("small", "medium"))):
        for file in folder.iterdir():
            assert file.suffix not in (".onnx", ".toml") or not paths_in(file), file.name
