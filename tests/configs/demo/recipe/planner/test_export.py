"""The bundle's planner: its graph with weights in 16 bits, its tokenizer, and what bundle.toml says of it."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import ROOT
from tokenizers import Tokenizer

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")

from configs.demo.recipe.bundle_text import read_bundle_file, write_bundle_file  # noqa: E402
from configs.demo.recipe.corpus.rendering import nearest_frames  # noqa: E402
from configs.demo.recipe.corpus.songs import Song  # noqa: E402
from configs.demo.recipe.corpus.theory import scale_pitch_classes  # noqa: E402
from configs.demo.recipe.evaluation.player import Piece as PieceRequest  # noqa: E402
from configs.demo.recipe.evaluation.player import open_player  # noqa: E402
from configs.demo.recipe.instruments import LAYERS  # noqa: E402
from configs.demo.recipe.latents import FRAMES_PER_CODE  # noqa: E402
from configs.demo.recipe.planner.arrangement import BAR_COUNTS, Section  # noqa: E402
from configs.demo.recipe.planner.evaluate import prompt_of  # noqa: E402
from configs.demo.recipe.planner.export import (  # noqa: E402
    export_planner,
    graph_logits,
    half_planner_graph,
    round_weights,
)
from configs.demo.recipe.planner.model import Planner  # noqa: E402
from configs.demo.recipe.planner.pages import (  # noqa: E402
    Piece,
    StructureCodes,
    draw_form,
    recalled_codes,
    section_markers,
    section_prompt,
    section_span,
)
from configs.demo.recipe.planner.tokens import (  # noqa: E402
    FIRST_CODE_ID,
    GROUP_SIZE,
    NUM_TOKENS,
    TOKEN_IDS,
    Codes,
    beat_steps,
    codes_of,
)
from configs.demo.recipe.planner.train import PlannerConfig, PlannerTrainer  # noqa: E402
from runtime.config.explain import validated  # noqa: E402
from runtime.config.planner import PlannerSpec  # noqa: E402
from runtime.pipeline.songs.plan import SongPlan  # noqa: E402


@pytest.fixture(scope="module")
def trainer() -> PlannerTrainer:
    return PlannerTrainer(PlannerConfig(threads=1))


def test_a_checkpoint_becomes_the_bundles_planner(trainer: PlannerTrainer, tmp_path: Path) -> None:
    write_bundle_file(tmp_path, {"steps": 5}, {"in_key": 0.5})
    assert "planner" not in read_bundle_file(tmp_path)
    trainer.save(tmp_path / "planner.pt")
    for half in ("encode", "decode"):
        shutil.copy(ROOT / f"configs/demo/structure_{half}.onnx", tmp_path)
    assert export_planner(tmp_path / "planner.pt", tmp_path) < 1e-3
    tables = read_bundle_file(tmp_path)
    assert (tables["training"]["steps"], tables["evaluation"]) == (5, {"in_key": 0.5})
    assert 1.1e6 < tables["training"]["planner_parameters"] < 1.4e6
    planner = validated(PlannerSpec, tables["planner"], "planner")
    assert planner.vocabulary == NUM_TOKENS
    assert planner.plan is not None
    assert [
        planner.plan.silent[layer] in group.tokens for layer, group in zip(LAYERS, planner.codes.groups, strict=True)
    ] == 5 * [True]
    assert 4e5 < (tmp_path / planner.graph).stat().st_size < 2.8e6
    assert planner.tokenizer is not None
    tokenizer = Tokenizer.from_file(str(tmp_path / planner.tokenizer))
    assert TOKEN_IDS["genre:jazz"] in tokenizer.encode("jazz").ids


def test_sixteen_bits_change_logits_a_little(trainer: PlannerTrainer) -> None:
    model = trainer.model.eval()
    tokens = np.random.default_rng(1).integers(NUM_TOKENS, size=(1, 40))
    with torch.no_grad():
        table = model.table()
        wanted = (model(table[torch.from_numpy(tokens)]) @ table.T).numpy()
    assert 0.0 < np.abs(graph_logits(half_planner_graph(model), tokens) - wanted).max() < 0.02


def uncut(piece: Piece, index: int) -> Piece:
    """A piece with a section in the length that was planned, before half of it was cut to fit."""
    sections, bars = list(piece.arrangement.sections), piece.arrangement.sections[index].bars
    sections[index] = replace(sections[index], bars=bars if bars in BAR_COUNTS else 2 * bars)
    return replace(piece, arrangement=replace(piece.arrangement, sections=tuple(sections)))


def step_frames(song: Song, code: int) -> int:
    """The frames of a code that are nearest to a step of a beat, one bit each, the lowest is its first."""
    steps = np.array(beat_steps()["6/8" if song.meter == "6/8" else song.genre])
    nearest = nearest_frames(np.add.outer(np.arange(200), steps) * song.frames_per_beat)
    frames = np.arange(code * FRAMES_PER_CODE, (code + 1) * FRAMES_PER_CODE)
    return int(np.isin(frames, nearest) @ (1 << np.arange(FRAMES_PER_CODE)))


def likeliest_codes(
    model: Planner, table: "torch.Tensor", structure: StructureCodes, piece: Piece, index: int
) -> Codes:
    """The codes int64 `[Q]` of a section, from all tokens before it.

    Each token is the likeliest of those in the song's scale that strike no drum beside the steps of its beats.
    """
    song = piece.arrangement.song
    onsets = torch.tensor([each or [0] * GROUP_SIZE for each in structure.onsets])
    scale = sum(1 << pitch for pitch in scale_pitch_classes(song.root, song.mode))
    is_outside = torch.tensor(structure.pitches) & ~scale != 0
    tokens = section_prompt(uncut(piece, index), index)
    markers = section_markers(piece, index, recalled_codes(structure, piece, index))
    found = list[list[int]]()
    for place, code in enumerate(section_span(piece, index)):
        tokens += markers(place)
        is_beside = onsets & ~step_frames(song, code) != 0
        for group, (layer, silent) in enumerate(structure.silent.items()):
            first = FIRST_CODE_ID + group * GROUP_SIZE
            if layer in piece.arrangement.sections[index].layers:
                hidden = model(table[torch.tensor([tokens])])[0, -1]
                logits = table[first : first + GROUP_SIZE] @ hidden
                logits[is_outside[group] | is_beside[group]] = -torch.inf
                tokens.append(first + int(logits.argmax()))
            else:
                tokens.append(silent)
        found.append(tokens[-len(LAYERS) :])
    return codes_of(np.array(found))


def test_the_runtime_writes_the_codes_that_torch_does(trainer: PlannerTrainer, tmp_path: Path) -> None:
    """Of an untrained planner, whose weights are large enough that its codes differ."""
    folder = shutil.copytree(ROOT / "configs/demo", tmp_path / "demo")
    model = trainer.model.eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    trainer.save(tmp_path / "planner.pt")
    export_planner(tmp_path / "planner.pt", folder)
    table, structure, seconds = round_weights(model), StructureCodes(folder), 14.0
    form = draw_form(np.random.default_rng(8))
    with open_player(folder) as player:
        asked = {"seconds": seconds, "plan": True, "plan_temperature": 0.0, "lyrics": "[verse][chorus][verse]"}
        plan = player.begin(PieceRequest(prompt_of(form), 1, asked)).plan
        assert isinstance(plan, SongPlan)
        found = np.array(plan.finish())
    sections = tuple(Section(each.kind, each.bars, frozenset(each.layers)) for each in plan.sections)
    piece = replace(form, arrangement=replace(form.arrangement, sections=sections))
    with torch.no_grad():
        for index in range(len(sections)):
            codes = likeliest_codes(model, table, structure, piece, index)
            piece = replace(piece, codes=np.concatenate([piece.codes, codes]))
    assert len(found) == seconds * 5
    assert len(set(found.tolist())) > 10
    assert found.tolist() == piece.codes[: len(found)].tolist()
