"""ACE-Step's language model as a planner, against transformers' Qwen3: whole, cached, in chunks, with a window."""

from __future__ import annotations

import inspect
import json
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.paths import ROOT
from helpers.planner_session import PlannerSession, off
from helpers.tiny_exports import TinyExports, exported_by
from helpers.tiny_planner import (
    CONFIG,
    DRAFT_CONFIG,
    VOCABULARY,
    byte_tokenizer,
    qwen3,
    reference_logits,
    save_checkpoint,
    tiny_weights,
)
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine_build.graphs.planner_graph import Qwen3Sizes
from runtime.base.errors import ConfigError
from runtime.config.explain import validated
from runtime.config.planner import PlannerSpec

VECTORS = ROOT / "tests/data/qwen3_logits.npz"
LIMIT, WINDOW = 1e-4, 20
# The places in the sequence whose logits are recorded, without and with a window.
PLACES = (0, 40, 95)
TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, (4, 100))


def logits_of(module: Any, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    import torch

    with torch.no_grad():
        logits: NDArray[np.float32] = module(torch.from_numpy(tokens)).logits.numpy()
    return logits


def loaded(folder: Path) -> Any:
    """transformers' model of a checkpoint, in float32."""
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_the_reference_of_the_tests_is_qwen3() -> None:
    """Recorded from transformers 5.23: logits of `PLACES`, of every fourth token of the vocabulary."""
    recorded = np.load(VECTORS)
    for window in (0, WINDOW):
        found = reference_logits(tiny_weights(), TOKENS[0], window)[list(PLACES), ::4]
        assert off(found, recorded[f"window_{window}"]) < LIMIT


@pytest.mark.export
@pytest.mark.parametrize("window", [0, WINDOW])
def test_the_recorded_logits_are_those_of_transformers(window: int) -> None:
    found = logits_of(qwen3(window), TOKENS[:1])[0, list(PLACES), ::4]
    assert off(found, np.load(VECTORS)[f"window_{window}"]) < 1e-5


@pytest.fixture(scope="module")
def checkpoint(tiny: TinyExports) -> Path:
    return tiny.planner()


def spec_of(tables: Mapping[str, Any]) -> PlannerSpec:
    """[planner], as bundle.toml has it."""
    from engine_build.export.bundle_tables import table_text

    text = "\n".join(table_text(name, values) for name, values in tables.items())
    return validated(PlannerSpec, tomllib.loads(text)["planner"], "planner")


@pytest.fixture(scope="module")
def exported(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PlannerSpec]:
    """The planner's files and its tables, as bundle.toml has them."""
    from engine_build.export.acestep.planner import LanguageModelFolder, export_planner

    folder = tmp_path_factory.mktemp("exported")
    return folder, spec_of(export_planner(LanguageModelFolder(checkpoint), folder))


@pytest.fixture(scope="module")
def module(checkpoint: Path) -> Any:
    return loaded(checkpoint)


@pytest.mark.export
def test_a_checkpoint_becomes_a_graph_with_its_weights_beside_it(exported: tuple[Path, PlannerSpec]) -> None:
    folder, spec = exported
    onnx.checker.check_model(str(folder / spec.graph), full_check=True)
    assert (folder / "planner.onnx.data").stat().st_size > 50_000
    assert (folder / "planner.onnx").stat().st_size < 50_000
    assert (spec.capacity, spec.vocabulary, spec.end_token, spec.codes.groups[0].first) == (128, VOCABULARY, 259, 260)
    assert spec.thinking is not None
    prompt, negative = spec.codes.texts({"caption": "piano", "lyrics": "la", "thinking": "bpm: 95"})
    assert prompt.endswith("<|im_start|>assistant\n<think>\nbpm: 95\n</think>\n")
    assert negative.endswith("# Caption\npiano\n\n# Lyric\nla\n<|im_end|>\n<|im_start|>assistant\n<think>\n</think>\n")
    assert spec.thinking.texts({"caption": "c", "lyrics": "l"})[0].endswith("<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.export
@pytest.mark.parametrize("chunk", [96, 32, 1])
def test_whole_in_chunks_and_cached_it_is_transformers_model(
    exported: tuple[Path, PlannerSpec], module: Any, chunk: int
) -> None:
    """transformers, too, goes on with its cache."""
    import torch

    planner, cache = PlannerSession(exported[0] / "planner.onnx", rows=4), None
    name = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
    for start in range(0, 96, chunk):
        part = TOKENS[:, start : start + chunk]
        with torch.no_grad():
            result = module(torch.from_numpy(part), **{name: cache}, use_cache=True)
        cache = result.past_key_values
        assert off(planner.run(part, start, slots=min(128, start + chunk + 5)), result.logits.numpy()) < LIMIT


@pytest.mark.export
def test_a_ring_is_transformers_sliding_window() -> None:
    from engine_build.graphs.planner_graph import planner_graph

    graph = planner_graph(Qwen3Sizes.of(CONFIG), 48, tiny_weights().__getitem__)
    planner, expected = PlannerSession(graph, rows=4, window=WINDOW), logits_of(qwen3(WINDOW), TOKENS)
    for start in range(0, 96, 16):
        found = planner.run(TOKENS[:, start : start + 16], start)
        assert off(found, expected[:, start : start + 16]) < LIMIT
    for position in range(96, 100):
        found = planner.run(TOKENS[:, position : position + 1], position)
        assert off(found[:, 0], expected[:, position]) < LIMIT


@pytest.mark.export
def test_random_weights_have_the_published_sizes(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from engine_build.export.acestep.planner import RandomLanguageModel, export_planner

    planner = RandomLanguageModel("0.6b")
    assert planner.report() == "662.9 M parameters, random"
    sizes = Qwen3Sizes.of(planner.config)
    assert (sizes.layers, sizes.hidden, sizes.heads, sizes.kv_heads, sizes.vocabulary) == (28, 1024, 16, 8, 217_204)
    assert RandomLanguageModel("4b").report() == "4,189.6 M parameters, random"
    small = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 300, "head_dim": 16}
    tables = export_planner(RandomLanguageModel("1.7b", **small, max_position_embeddings=64), tmp_path, num_codes=30)
    assert tables["planner.codes"]["groups"] == [{"first": 151_669, "count": 30}]
    assert "planner.thinking" not in tables


@pytest.mark.export
def test_a_checkpoint_without_a_head_is_tied_also_against_its_configuration(checkpoint: Path, tmp_path: Path) -> None:
    from engine_build.export.acestep.planner import LanguageModelFolder

    folder = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert Qwen3Sizes.of(LanguageModelFolder(folder).config).is_tied


@pytest.mark.export
def test_what_is_no_language_model_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    from engine_build.export.acestep.planner import LanguageModelFolder, RandomLanguageModel

    with pytest.raises(ConfigError, match="is not a language model in Qwen3's layout"):
        LanguageModelFolder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    with pytest.raises(ConfigError, match="is not a language model in Qwen3's layout"):
        LanguageModelFolder(tmp_path)
    with pytest.raises(ConfigError, match=r"expected 0\.6b, 1\.7b, 4b"):
        RandomLanguageModel("8b")


@pytest.mark.export
def test_a_checkpoint_has_a_planner_and_a_draft_beside_its_parts(
    base: Path, checkpoint: Path, tiny: TinyExports, tmp_path: Path
) -> None:
    from engine_build.export.acestep.sources import AceStepCheckpoint

    alone, planned = AceStepCheckpoint(base), AceStepCheckpoint(base, checkpoint)
    source = AceStepCheckpoint(base, checkpoint, tiny.draft())
    assert len({each.fingerprint() for each in (alone, planned, source)}) == 3
    for part in ("planner", "planner_draft"):
        assert f"  {part}: 0.0 M parameters in bf16" in list(source.report())
    facts: dict[str, Any] = {"structure": {"num_codes": 64_000}}
    steps = [step for step in exported_by(source).present_steps() if step.name.startswith("planner")]
    for step in steps:
        facts |= step.export(source, tmp_path, facts)
    planner = spec_of(facts["planner"])
    assert (planner.codes.count, planner.sampler.guidance) == (10, 2.0)
    assert planner.draft is not None
    assert (planner.draft.graph, planner.draft.capacity) == ("planner_draft.onnx", planner.capacity)
    found = PlannerSession(tmp_path / planner.draft.graph, rows=1).run(TOKENS[:1, :20], 0)
    assert off(found, logits_of(loaded(tiny.draft()), TOKENS[:1, :20])) < LIMIT


@pytest.mark.export
def test_a_draft_with_other_tokens_is_refused(base: Path, checkpoint: Path, tmp_path: Path) -> None:
    from engine_build.export.acestep.sources import AceStepCheckpoint

    changed = byte_tokenizer().to_str().replace("audio_code_3|", "audio_code_x|")
    renamed = save_checkpoint(tmp_path / "renamed", DRAFT_CONFIG, tokenizer=Tokenizer.from_str(changed))
    with pytest.raises(ConfigError, match=r"token '<\|audio_code_x\|>' is None and 263") as raised:
        AceStepCheckpoint(base, checkpoint, renamed)
    assert "acestep-5Hz-lm-4B and acestep-5Hz-lm-0.6B" in str(raised.value.fix)
    wider = save_checkpoint(tmp_path / "wider", {**DRAFT_CONFIG, "vocab_size": VOCABULARY + 8})
    with pytest.raises(ConfigError, match="vocab_size is 280 and 288"):
        AceStepCheckpoint(base, checkpoint, wider)
