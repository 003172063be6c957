"""What options say of a song: tokens, tempo, kinds by tags."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from helpers.songs import PLANNER, SPEC
from helpers.tiny_planner import PLAN, word_tokenizer

from runtime.base.errors import RequestError
from runtime.config.option_ranges import OptionRanges
from runtime.config.plan_spec import PlanSpec
from runtime.pipeline.songs.course import Course
from runtime.pipeline.songs.planner import Planner
from runtime.pipeline.songs.prompt import read_prompt, section_tags
from runtime.requests.options import parse_options


class Words:
    """A bundle's planner and its tokenizer; the bundle takes no lyrics."""

    spec = PLANNER
    bundle: Any = SimpleNamespace(text_encoder=None, options=OptionRanges.model_validate({"bpm": {"max": 180}}))

    def tokens(self, text: str) -> tuple[int, ...]:
        """Known words."""
        return tuple(token for token in word_tokenizer().encode(text).ids if token != 255)


def read(**options: Any) -> Any:
    return read_prompt(cast(Planner, Words()), parse_options({"prompt": "calm", **options}))


def test_prompt_and_metadata_become_tokens() -> None:
    found = read(bpm=120, time_signature=3, negative_prompt="a wild one", lyrics="[verse]")
    assert (found.tokens, found.negative, found.bpm, found.kinds) == ((28, 9, 13), (29,), 120, (16,))
    assert read(prompt=[{"text": "so calm"}, {"text": "wild"}]).tokens == (29,), "the texts with commas between them"


@pytest.mark.parametrize(
    ("prompt", "bpm"),
    [
        ("house at 124 bpm", 124),
        ("97BPM", 97),
        ("93.5 bpm", 93.5),
        ("300 bpm", 180),  # the nearest that the model takes: what a plan says is what it plays
        ("in 1990 bpm", None),
        ("bpm", None),
        ("00 bpm", None),
        ("301 bpm", None),
    ],
)
def test_a_tempo_may_be_in_the_prompt(prompt: str, bpm: float | None) -> None:
    assert read(prompt=prompt).bpm == bpm
    assert read(prompt=prompt, bpm=100).bpm == 100


def test_tags_name_kinds() -> None:
    assert section_tags(SPEC, "", sings=False) == section_tags(SPEC, "[Instrumental]", sings=False) == ()
    assert section_tags(SPEC, "[Verse 1] [drop]\n[Outro: soft]\n", sings=False) == (16, 17, 19)
    assert section_tags(SPEC, "[verse]\nla la\n[guitar solo]\n[drop]", sings=True) == (16, 17)


@pytest.mark.parametrize("lyrics", ["[verse] la la", "[solo]", "la", "[]", "[1]"])
def test_lyrics_are_refused_where_the_model_does_not_sing(lyrics: str) -> None:
    with pytest.raises(RequestError, match=r"does not sing[\s\S]*\[verse\] \[chorus\] \[break\] \[outro\] \[drop\]"):
        section_tags(SPEC, lyrics, sings=False)


def test_more_tags_than_a_plan_has_sections_are_refused() -> None:
    with pytest.raises(RequestError, match="has 7 sections, at most 6"):
        section_tags(SPEC, "[verse]" * 7, sings=False)


def with_plan(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    plan = PlanSpec.model_validate({**PLAN, **changes})
    monkeypatch.setattr(Words, "spec", PLANNER.model_copy(update={"plan": plan}))


def test_names_of_ensembles_stand_for_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(prompt="Duo").tokens == ()
    with_plan(monkeypatch, ensembles={"duo": "wild"}, voices={"duo": 2, "trio": 3})
    assert (read(prompt="Duo").tokens, read(prompt="Duo").voices) == ((29,), 2)
    assert (read(prompt="duos").tokens, read(prompt="duos").voices) == ((), 0)


def test_what_a_word_implies_is_left_out_where_no_other_word_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word "calm" is a layer's token here, which "wild" rules out, as a genre does that plays it."""
    named = {"named": {"drums": 28}, "absent": {"drums": 29}, "tempos": {"96": (60, 80)}}
    with_plan(monkeypatch, **named, unasked={"drone": ["drums"]}, ensembles={"drone": "calm"})
    assert read(prompt="a drone").tokens == (29,)
    assert read(prompt="a calm drone").tokens == (28, 28)
    assert read(prompt="calm").tokens == (28,)


def test_what_is_given_of_first_sections() -> None:
    found = read(prompt="a", lyrics="[verse] [chorus]")
    assert (found.given, found.num_given) == ({0: 16, 3: 17}, 2)
    course = replace(found, kinds=(), course=Course((18,), (20,)))
    assert (course.given, course.num_given) == ({0: 18, 1: 20}, 1)
    assert replace(course, kinds=(16,)).given == {0: 16}, "tags say more"
