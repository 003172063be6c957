"""The shipped bundle through the tick loop: adherence to prompts, pieces of any length, covers, finished audio."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.factories import TinySpec, tiny_bundle
from helpers.generations import generate
from helpers.paths import ROOT

from configs.demo.recipe.evaluation import sound
from configs.demo.recipe.evaluation.evaluate import cover_source, held_out_requests, latents_of, score
from configs.demo.recipe.evaluation.measure import difference, in_key_energy, layers_present
from configs.demo.recipe.evaluation.player import EndlessPiece, Piece, Player, open_player
from configs.demo.recipe.latents import CANVAS_FRAMES, CHANNELS, HOP_SAMPLES, FloatArray, levels_from_latents
from configs.demo.recipe.planner.pages import StructureCodes
from runtime.config.deployment import Deployment
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.pipeline import open_pipeline
from runtime.pipeline.songs.plan import SongPlan
from runtime.pipeline.songs.planner import Planner

FOLDER = ROOT / "configs" / "demo"
PROMPT = "pads, bass and drums in A minor at 100 bpm"


@pytest.fixture(scope="module")
def player(built_demo: Deployment) -> Iterator[Player]:
    with open_pipeline(built_demo) as pipeline:
        yield Player(pipeline)


@pytest.fixture(scope="module")
def played(player: Player) -> FloatArray:
    return player.play([PROMPT], seed=3)[0]


def test_engines_are_built_in_a_folder_of_their_own(tmp_path: Path) -> None:
    bundle = tiny_bundle(tmp_path)
    files = set(tmp_path.rglob("*"))
    with open_player(bundle) as opened:
        assert opened.pipeline.bundle.folder == bundle
        assert opened.play(["a"], seed=1).shape == (1, TinySpec().canvas_frames, TinySpec().channels)
    assert set(tmp_path.rglob("*")) == files


def test_it_plays_what_it_is_asked_for(player: Player) -> None:
    requests = held_out_requests(4)
    rolls = levels_from_latents(player.play([request.prompt for request in requests], seed=50))
    scores = score(requests, rolls)
    assert scores.in_key > 0.9
    assert scores.layers_present > 0.9
    assert scores.layers_absent > 0.9


def test_a_seed_gives_one_piece_and_another_seed_another(player: Player, played: FloatArray) -> None:
    first, again = levels_from_latents(played), levels_from_latents(player.play([PROMPT], seed=3))[0]
    other = levels_from_latents(player.play([PROMPT], seed=4))[0]
    live = levels_from_latents(player.play([PROMPT], seed=3, live=True))[0]
    assert difference(first, again) < 1e-3
    assert difference(first, other) > 0.1
    assert 0.0 < difference(first, live) < difference(first, other)


def test_dcw_keeps_the_key_at_small_strengths_only(player: Player) -> None:
    def in_key(low: float) -> float:
        request = player.pipeline.request("pads and bass in A minor", seed=1, dcw={"low": low}, steps=16)
        return in_key_energy(levels_from_latents(generate(player.pipeline.loop, request)), 9, "minor")

    assert in_key(0.02) > 0.9
    assert in_key(0.2) < 0.75


def test_a_longer_piece_goes_on_as_it_began(player: Player) -> None:
    (latents,) = player.generate([Piece(PROMPT, 1, {"seconds": 20.0})])
    levels = levels_from_latents(latents)
    assert latents.shape == (500, CHANNELS)
    assert in_key_energy(levels[CANVAS_FRAMES:], 9, "minor") > 0.9
    assert layers_present(levels[CANVAS_FRAMES:]) == layers_present(levels) == {"pad", "bass", "drums"}


def test_a_session_without_end_begins_as_its_plan_does(player: Player) -> None:
    pieces = [EndlessPiece(player.pipeline, Piece(PROMPT, 3, {}), 300) for _ in range(2)]
    first, again = player.finish(pieces)
    assert first.shape == again.shape == (300, CHANNELS)
    assert difference(levels_from_latents(first), levels_from_latents(again)) < 1e-3
    assert pieces[0].sections[0].start_frame == 0
    planned = {layer for section in pieces[0].sections if section.start_frame < 300 for layer in section.layers}
    assert layers_present(levels_from_latents(first)) <= planned


def test_a_plans_codes_are_in_a_rare_key_because_others_never_come(player: Player) -> None:
    pipeline = player.pipeline
    options = {"seconds": 20.0, "plan": True, "plan_temperature": 1.0, "plan_top_p": 1.0}
    assert pipeline.planner is not None
    assert pipeline.structure is not None
    spec = pipeline.planner.spec
    assert spec.plan is not None
    free = spec.model_copy(update={"plan": spec.plan.model_copy(update={"scales": (), "pitches": ()})})
    planner = Planner(pipeline.bundle, free, pipeline.loop, pipeline.structure)
    structure, found = StructureCodes(FOLDER), list[float]()
    for each in (player, Player(replace(pipeline, planner=planner))):
        plan = each.begin(Piece("techno, pads, melody, bass, arps, drums, A# blues, 128 bpm", 1, options)).plan
        assert isinstance(plan, SongPlan)
        found.append(in_key_energy(structure.decode(np.array(plan.finish())), 10, "blues"))
        assert (plan.header["key"], plan.header["mode"]) == ("a#", "blues")
    assert found[0] > 0.95
    assert found[1] < 0.9


def test_a_cover_keeps_harmony_and_rhythm_as_far_as_asked(player: Player) -> None:
    song, _, prompt = cover_source(0)
    source = latents_of(song)
    audio = player.decode(source)
    pieces = [
        Piece(prompt, 1, {"task": "cover", "structure_strength": strength}, GenerationInputs(source=source))
        for strength in (1.0, 0.0)
    ]
    kept, free = (player.decode(latents) for latents in player.generate(pieces))
    assert sound.chroma_similarity(audio, kept) > 0.6
    assert sound.chroma_similarity(audio, kept) > sound.chroma_similarity(audio, free) + 0.2
    assert sound.onset_correlation(audio, kept) > sound.onset_correlation(audio, free) + 0.2


def test_finished_audio_is_loud_and_below_the_ceiling(player: Player) -> None:
    audio = player.finished_audio(Piece(PROMPT, 3, {}))
    assert audio.shape == (CANVAS_FRAMES * HOP_SAMPLES, 2)
    assert sound.true_peak_db(audio) < -1.0
    assert sound.level_db(audio) > -25.0
    assert sound.num_clicks(audio, []) == 0


def test_encoding_what_was_decoded_gives_its_notes(player: Player, played: FloatArray) -> None:
    encoded = player.encode(player.decode(played))
    levels, heard = levels_from_latents(played), levels_from_latents(encoded)
    sounding = levels[:, :52] > 0.25
    assert np.mean(heard[:, :52][sounding] > 0.1) > 0.7
