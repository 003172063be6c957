from __future__ import annotations

import pytest

from runtime.requests.text_options import MAX_LYRICS_CHARACTERS
from server.asgi.problems import Finding, ProblemError
from server.protocols.acestep.fields import MAX_ITEMS, PARAMETERS, Fields, error_text


def test_values_come_by_every_name_and_from_objects() -> None:
    fields = Fields({"caption": "a", "param_obj": '{"duration": 3}', "user_metadata": {"keyScale": "Am", "bpm": 90}})
    assert (fields.text("prompt"), fields.number("audio_duration")) == ("a", 3.0)
    assert (fields.text("key_scale"), fields.integer("bpm"), fields.text("lyrics")) == ("Am", 90, "")
    both = Fields({"prompt": "first", "caption": "second", "bpm": 100, "metas": {"bpm": 120}})
    assert (both.text("prompt"), both.integer("bpm")) == ("first", 100)


def test_texts_of_forms_are_values() -> None:
    fields = Fields({"bpm": "120", "thinking": "True", "shift": " 2.5 ", "seed": "", "lyrics": " la "})
    assert (fields.integer("bpm"), fields.flag("thinking"), fields.number("shift")) == (120, True, 2.5)
    assert (fields.integer("seed"), fields.flag("use_adg", True), fields.text("lyrics")) == (None, True, "la")
    assert Fields({"seed": "", PARAMETERS: '{"seed": 5}'}).integer("seed") == 5
    assert (Fields({"thinking": 0}).flag("thinking", True), Fields({"bpm": 120.0}).integer("bpm")) == (False, 120)
    assert Fields({"track_classes": "drums, bass|fx,"}).texts("track_classes") == ["drums", "bass", "fx"]
    assert Fields({"instruments": ["drums", 5]}).texts("track_classes") == ["drums", "5"]


@pytest.mark.parametrize(
    ("kind", "value"),
    [("number", "1e999"), ("number", True), ("integer", 1.5), ("flag", 2), ("text", {}), ("text", [1])],
)
def test_a_value_of_another_kind_is_refused_by_name(kind: str, value: object) -> None:
    with pytest.raises(ProblemError) as error:
        getattr(Fields({"bpm": value}), kind)("bpm")
    assert error.value.document().model_dump()["errors"][0]["pointer"] == "/bpm"


@pytest.mark.parametrize(
    ("name", "most"), [("key_scale", MAX_LYRICS_CHARACTERS), ("audio_code_string", 131_072), ("seed", MAX_ITEMS)]
)
def test_texts_and_lists_have_a_most(name: str, most: int) -> None:
    def read(size: int) -> object:
        return Fields({name: [7] * size}).texts(name) if most == MAX_ITEMS else Fields({name: "x" * size}).text(name)

    assert read(most)
    with pytest.raises(ProblemError, match=f"has {most + 1} .*, at most {most} are taken"):
        read(most + 1)


@pytest.mark.parametrize(("value", "words"), [("{", "JSON"), ("[]", "object"), ([1], "object")])
def test_an_object_of_another_kind_is_refused_by_name(value: object, words: str) -> None:
    with pytest.raises(ProblemError) as error:
        Fields({PARAMETERS: value})
    (finding,) = error.value.document().model_dump()["errors"]
    assert finding["pointer"] == f"/{PARAMETERS}"
    assert words in finding["detail"]


def test_an_error_has_the_clients_names() -> None:
    def text(pointer: str, detail: str, fix: str = "") -> str:
        error = ProblemError(422, "x", "what", fix=fix, errors=[Finding(pointer=pointer, detail=detail)])
        return error_text(error.document().model_dump())

    assert text("/guidance", "too large", "see /v1/schema") == "guidance_scale: too large"
    assert text("/repaint/0/end_s", "repaint: is outside", "end it") == "repainting_start: is outside (end it)"
    assert text("/query/path", "is missing") == "path: is missing"
    assert text("", "wrong") == "wrong"
    assert error_text(ProblemError(503, "busy", "busy").document().model_dump()) == "busy"
