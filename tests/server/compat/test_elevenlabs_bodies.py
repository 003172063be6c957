from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from runtime.config.option_ranges import NumberRange
from runtime.requests.option_types import WeightedPrompt
from runtime.requests.options import GenerationOptions, parse_options
from runtime.requests.segments import Segment
from server.asgi.problems import ProblemError
from server.compat.elevenlabs_bodies import INSTRUMENTAL, ChunkPlan, MusicBody, SectionPlan, SoundBody, plan_options

FRAMES_PER_S = 25


def section(name: str, seconds: float, *styles: str, avoided: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return {
        "section_name": name,
        "positive_local_styles": list(styles),
        "negative_local_styles": list(avoided),
        "duration_ms": round(1000 * seconds),
        "lines": [],
        **more,
    }


def sections(*items: dict[str, Any], wanted: tuple[str, ...] = (), avoided: tuple[str, ...] = ()) -> SectionPlan:
    return SectionPlan.model_validate(
        {"positive_global_styles": list(wanted), "negative_global_styles": list(avoided), "sections": list(items)}
    )


def chunks(*items: dict[str, Any]) -> ChunkPlan:
    return ChunkPlan.model_validate({"chunks": list(items)})


def options_of(plan: SectionPlan | ChunkPlan, *, takes_lyrics: bool = False) -> GenerationOptions:
    """The plan's options, after the checks that every request's have."""
    return parse_options(plan_options(plan.parts(), takes_lyrics=takes_lyrics))


def weights_of(options: GenerationOptions) -> dict[str, Any]:
    """Every prompt's weight per frame, as the runtime reads the curves."""
    assert options.seconds is not None
    frames = round(options.seconds * FRAMES_PER_S)
    segment = Segment(0, frames, total_frames=frames)
    assert isinstance(options.prompt, list)
    assert all(isinstance(item, WeightedPrompt) for item in options.prompt)
    return {item.text: segment.curve(item.weight) for item in options.prompt}


def test_every_section_has_its_prompt_in_its_time() -> None:
    plan = sections(section("Intro", 4, "pads"), section("Drop", 6, "drums", "bass"), wanted=("techno", "120 bpm"))
    options = options_of(plan)
    assert options.seconds == 10
    weights = weights_of(options)
    assert list(weights) == ["techno, 120 bpm, pads", "techno, 120 bpm, drums, bass"]
    intro, drop = weights.values()
    np.testing.assert_allclose(intro + drop, 1, atol=1e-6)
    assert (intro[: 4 * FRAMES_PER_S - 4] == 1).all()
    assert (drop[4 * FRAMES_PER_S + 4 :] == 1).all()
    assert abs(float(intro.sum()) - 4 * FRAMES_PER_S) < 3


def test_sections_of_the_same_styles_share_a_prompt() -> None:
    plan = sections(*(section(f"{i}", 3, ("verse", "chorus")[i % 2]) for i in range(20)))
    weights = weights_of(options_of(plan))
    assert list(weights) == ["verse", "chorus"]
    assert np.mean(weights["verse"]) == pytest.approx(0.5, abs=0.01)
    assert options_of(sections(section("a", 3, "calm"), section("b", 3, "calm"))).prompt == "calm"


def test_the_longest_plan_has_a_curve_that_a_request_can_have() -> None:
    plan = sections(*(section(f"{i}", 120, f"style {i}") for i in range(5)))
    assert np.isfinite(list(weights_of(options_of(plan)).values())).all()


def test_what_is_avoided_is_the_negative_prompt() -> None:
    plan = sections(section("a", 3, "pads", avoided=("drums", "vocals")), section("b", 3, "bass"), avoided=("vocals",))
    assert options_of(plan).negative_prompt == "vocals, drums"


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (sections(section("a", 3, avoided=("Drums",)), section("b", 3, "drums")), "avoids 'Drums' in one section"),
        (sections(*(section(f"{i}", 3, f"style {i}") for i in range(9))), "9 sections of different styles, at most 8"),
        (sections(*(section(f"{i}", 101) for i in range(6))), "lasts 606000 ms, at most 600000"),
        (sections(section("a", 3, lines=["la la"])), "does not sing"),
    ],
)
def test_a_plan_that_cannot_be_played_is_refused(plan: SectionPlan, message: str) -> None:
    with pytest.raises(ProblemError, match=message) as error:
        plan_options(plan.parts(), takes_lyrics=False)
    assert (error.value.status, error.value.errors[0].pointer) == (422, "/composition_plan")


def test_lines_are_lyrics_with_the_sections_names() -> None:
    plan = sections(section("Verse 1", 3, "folk", lines=["one", "two"]), section("Solo", 3, "folk"))
    assert options_of(plan, takes_lyrics=True).lyrics == "[Verse 1]\none\ntwo\n\n[Solo]"
    assert options_of(sections(section("Solo", 3, "folk")), takes_lyrics=True).lyrics == INSTRUMENTAL


def test_chunks_have_names_directions_and_lines_in_their_text() -> None:
    plan = chunks(
        {"text": "[Verse 1]\none {whispered}\n\ntwo", "duration_ms": 3000, "positive_styles": ["folk", "guitar"]},
        {"text": "", "duration_ms": 4000, "positive_styles": [], "negative_styles": ["drums"]},
        {"text": "three", "duration_ms": 3000, "positive_styles": ["rock"], "context_adherence": "low"},
    )
    first, second, third = plan.parts()
    assert (first.name, first.styles, first.lines) == ("Verse 1", ("folk", "guitar", "whispered"), ("one", "two"))
    assert (second.name, second.styles, second.avoided, second.lines) == ("", first.styles, ("drums",), ())
    assert (third.name, third.styles, third.lines) == ("", ("rock",), ("three",))
    assert options_of(plan, takes_lyrics=True).lyrics == "[Verse 1]\none\ntwo\n\n\n\nthree"


def music(**values: Any) -> MusicBody:
    return MusicBody.model_validate({"prompt": "techno", **values})


def test_a_prompt_with_what_ElevenLabs_calls_it() -> None:  # noqa: N802
    body = music(music_length_ms=3500, seed=7, finetune_id="m", force_instrumental=True, model_id="music_v1")
    options = body.options([], takes_lyrics=True)
    assert options == {
        "prompt": "techno",
        "seconds": 3.5,
        "lyrics": INSTRUMENTAL,
        "adapters": [{"id": "m"}],
        "seed": 7,
    }
    parse_options(options)
    assert "lyrics" not in body.options([], takes_lyrics=False)


@pytest.mark.parametrize(
    "values",
    [
        {"prompt": None},
        {"composition_plan": {"chunks": []}},
        {"prompt": None, "composition_plan": {}, "music_length_ms": 3000},
        {"music_length_ms": 2999},
        {"music_length_ms": 600_001},
        {"music_length_ms": "3000"},
        {"seed": -1},
        {"force_instrumental": "yes"},
        {"store_for_inpainting": True},
        {"sign_with_c2pa": True},
        {"with_timestamps": True},
        {"prompt": "x" * 2001},
        {"lenght": 3},
    ],
)
def test_bodies_that_are_not_ElevenLabs_are_refused(values: dict[str, Any]) -> None:  # noqa: N802
    with pytest.raises(ValidationError):
        music(**values)
    music(store_for_inpainting=False, sign_with_c2pa=None)


def test_influence_is_guidance_around_the_models_own() -> None:
    def guidance(influence: float | None) -> Any:
        body = SoundBody.model_validate({"text": "rain", "prompt_influence": influence})
        return body.options(10.0, 4.0).get("guidance")

    assert [guidance(influence) for influence in (None, 0.0, 0.3, 1.0)] == [None, 1.0, 4.0, 11.0]
    assert SoundBody(text="rain").options(10.0, 4.0)["seconds"] == 10.0
    assert SoundBody(text="rain", duration_seconds=0.5).options(10.0, 4.0)["seconds"] == 0.5


def test_more_influence_than_the_model_takes_is_all_that_it_takes() -> None:
    body = SoundBody.model_validate({"text": "rain", "prompt_influence": 1.0})
    assert body.options(2.0, guidance=3.0)["guidance"] == pytest.approx(1 + 2 / 0.3)
    assert body.options(2.0, 3.0, NumberRange(min=1, max=5))["guidance"] == 5
