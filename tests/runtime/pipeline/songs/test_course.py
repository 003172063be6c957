"""What prompts say of how a song goes."""

from __future__ import annotations

import pytest
from helpers.songs import SPEC as PLAIN
from helpers.tiny_planner import PLAN

from runtime.config.plan_spec import PlanSpec
from runtime.pipeline.songs.course import Course, course_words, read_course
from runtime.requests.prompt_words import PromptWords

# The layers' names are known words; "kit" and "beat" are drums, "beat" of a style that has a bass.
NAMED = {"drums": 60, "bass": 61}
WORDS = {"drums": {60}, "kit": {60}, "bass": {61}, "beat": {60, 61}}
SPEC = PlanSpec.model_validate({**PLAN, "named": NAMED})
BEGUN = SPEC.model_copy(update={"beginning": "break"})


def tokens(text: str) -> set[int]:
    return set().union(*(found for word, found in WORDS.items() if word in text.lower()))


def read(text: str, spec: PlanSpec = SPEC) -> tuple[list[str], list[str], int]:
    found = read_course(spec, text, tokens)
    return (
        [spec.kind.value(kind) for kind in found.kinds],
        [spec.layers.value(each) for each in found.layers],
        found.rise,
    )


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("start with drums only, add bass later", ["drums"]),
        ("Starts with only bass, then drums", ["bass"]),
        ("house that begins with the kit and adding bass later", ["drums"]),
        ("starting with a beat", ["drums+bass"]),
        ("first only drums, then bass", ["drums"]),
        ("only bass at the start, drums", ["bass"]),
        ("beginnt mit nur bass, dann drums", ["bass"]),
        ("commence avec drums, puis bass", ["drums"]),
        ("start with something calm and drums", ["drums"]),
        ("drums only at first, then the bass comes in", ["drums"]),
        ("house, drums alone at the beginning", ["drums"]),
        ("drums first, then bass", ["drums"]),
        ("first the drums, then bass", ["drums"]),
        ("intro with only bass, drums", ["bass"]),
        ("bass and drums, with an intro", []),
        ("my first drums", []),
        ("start with something calm", []),
        ("drums and bass with a start", []),
        ("an open hat with bass", []),
    ],
)
def test_what_a_song_begins_with(text: str, layers: list[str]) -> None:
    assert read(text)[:2] == ([], layers)
    assert read(text, BEGUN)[:2] == (["break"] if layers else [], layers)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("break down then drop", ["break", "chorus"]),
        ("a verse, then the chorus, then a big break", ["verse", "chorus", "break"]),
        ("verses into a chorus to drops", ["verse", "chorus", "chorus"]),
        ("verse -> drop", ["verse", "chorus"]),
        ("verse and chorus", []),
        ("drop the verse, then run", []),
        ("then drop", []),
        ("", []),
    ],
)
def test_kinds_that_follow_each_other(text: str, kinds: list[str]) -> None:
    assert read(text)[0] == kinds


@pytest.mark.parametrize(
    ("text", "rise"),
    [
        ("louder and louder", 1),
        ("strings that slowly get louder", 1),
        ("a long crescendo", 1),
        ("start quietly and get loud", 1),
        ("from soft to loud", 1),
        ("loud to quiet", -1),
        ("ends softly", -1),
        ("loud drums and quiet bass", 0),
        ("building up to a huge climax", 1),
        ("immer lauter", 1),
        ("getting gradually softer", -1),
        ("diminuendo", -1),
        ("a decrescendo", -1),
        ("de plus en plus calme", -1),
        ("louder and louder, then quieter and quieter", 0),
        ("loud drums", 0),
        ("soft and calm", 0),
    ],
)
def test_whether_a_song_rises(text: str, rise: int) -> None:
    assert read(text)[2] == rise


def test_a_model_without_such_kinds_and_layers_takes_nothing() -> None:
    assert read_course(PLAIN, "start with drums only, build up then fall", tokens) == Course()


@pytest.mark.parametrize(
    ("text", "known", "unknown"),
    [
        ("start with drums only, add bass later", ("start with", "add", "later"), ()),
        ("house, louder and louder, blorp", ("louder and louder",), ("blorp",)),
        ("break down then drop", ("then",), ()),
        ("louder drums, then bass", (), ("louder", "then")),
    ],
)
def test_what_says_a_course_is_understood(text: str, known: tuple[str, ...], unknown: tuple[str, ...]) -> None:
    words = PromptWords(("calm",), (*known, *unknown), {"blorp": ("blues",), "louder": ("loud",)})
    found = words.with_understood(course_words(SPEC, text, tokens))
    assert (found.understood, found.unknown) == (("calm", *known), unknown)
    assert set(found.near) == {"blorp", "louder"} & set(unknown) if known else found == words
