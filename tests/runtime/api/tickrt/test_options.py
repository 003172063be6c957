"""The types of the options say what GenerationOptions takes."""

import inspect
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from pydantic import BaseModel

import tickrt
from runtime.live.parts.controls import LiveControls
from runtime.requests import option_types as types
from runtime.requests import options as source
from tickrt.options import INPUTS, json_values, plain_options, prompt_items

TYPED_DICTS = {
    types.WeightedPrompt: tickrt.WeightedPrompt,
    types.Span: tickrt.Span,
    types.DcwOptions: tickrt.DcwOptions,
    types.AdapterOptions: tickrt.AdapterOptions,
    types.NoteOptions: tickrt.NoteOptions,
}
TEXTS = ("bpm", "key", "time_signature", "repaint", "track_classes")
CURVE, FRAMES = "curve", "frames of channels"


def kinds(annotation: Any) -> frozenset[Any]:
    """What an annotation accepts, in one form for models and TypedDicts: numbers or lists of numbers are a CURVE."""
    if get_origin(annotation) is Annotated:
        return kinds(get_args(annotation)[0])
    if alias := getattr(get_origin(annotation), "__value__", None):  # NDArray, from numpy 2.5
        return kinds(alias[get_args(annotation)])
    if get_origin(annotation) in (Union, UnionType):
        return _merged(frozenset().union(*map(kinds, get_args(annotation))))
    if get_origin(annotation) in (list, Sequence):
        (item,) = (kinds(argument) for argument in get_args(annotation))
        return frozenset({FRAMES if item & {list[float], CURVE} else list[next(iter(item))]})
    if get_origin(annotation) is np.ndarray:
        (number,) = get_args(get_args(annotation)[1])
        return frozenset({list[int] if issubclass(get_origin(number) or number, np.integer) else list[float]})
    return frozenset({TYPED_DICTS.get(annotation, annotation)})


def _merged(found: frozenset[Any]) -> frozenset[Any]:
    return (found - {float, list[float]}) | {CURVE} if list[float] in found else found


def assert_same_fields(model: type[BaseModel], typed: Any, hidden: tuple[str, ...] = ()) -> None:
    hints = get_type_hints(typed)
    fields = {name: field for name, field in get_type_hints(model).items() if name in model.model_fields}
    assert set(hints) == set(fields) - set(hidden)
    for name, hint in hints.items():
        if hint == tickrt.Adapters | None:  # its short forms are tested below
            hint = Sequence[tickrt.AdapterOptions] | None
        texts = {str, list[str]} if name in TEXTS else set()  # which they are read from: tests/test_option_texts.py
        assert kinds(hint) - texts == kinds(fields[name]) - texts, name
        assert name not in TEXTS or str in kinds(hint), name


def test_controls_are_those_of_a_live_session() -> None:
    assert_same_fields(LiveControls, tickrt.Controls)


@pytest.mark.parametrize("model", TYPED_DICTS, ids=lambda model: model.__name__)
def test_nested_types_have_the_models_fields(model: type[BaseModel]) -> None:
    assert_same_fields(model, TYPED_DICTS[model])
    required = {name for name, field in model.model_fields.items() if field.is_required()}
    assert TYPED_DICTS[model].__required_keys__ == required


def test_options_have_the_fields_of_generation_options() -> None:
    assert_same_fields(source.GenerationOptions, tickrt.Options, hidden=("prompt", "notes"))
    pairs = Sequence[tickrt.WeightedPrompt | tuple[str, tickrt.Curve]]  # what pairs become is tested below
    assert tickrt.Prompt == str | pairs
    weighted = kinds(str | Sequence[tickrt.WeightedPrompt])
    assert weighted == kinds(source.GenerationOptions.model_fields["prompt"].annotation)
    assert not tickrt.Options.__required_keys__


def test_a_type_that_differs_would_be_found() -> None:
    assert kinds(float | list[float]) == kinds(tickrt.Curve)
    assert kinds(float) != kinds(tickrt.Curve)
    assert kinds(float | None) == {float, NoneType} != kinds(float)


def test_inputs_are_the_arguments_that_are_no_options() -> None:
    assert set(INPUTS) == get_type_hints(tickrt.Arguments).keys() - get_type_hints(tickrt.Options).keys()
    assert get_type_hints(tickrt.Generation).keys() - get_type_hints(tickrt.Arguments).keys() == {"prompt"}


@pytest.mark.parametrize("item", [tickrt.Arguments, tickrt.Model.generate, tickrt.Model.stream])
def test_docstrings_describe_every_argument(item: Any) -> None:
    text = inspect.getdoc(item) or ""
    for name, field in source.GenerationOptions.model_fields.items():
        assert name == "prompt" or f"    {name}: {field.description}" in text
    assert all(f"    {name}: " in text for name in INPUTS)


@pytest.mark.parametrize(
    ("given", "items"),
    [
        ("soft", [{"id": "soft"}]),
        ({"soft": 0.5, "loud": 1}, [{"id": "soft", "strength": 0.5}, {"id": "loud", "strength": 1}]),
        (("soft", {"id": "loud", "strength": 2.0}), [{"id": "soft"}, {"id": "loud", "strength": 2.0}]),
        ({"id": "soft", "strength": 0.5}, [{"id": "soft", "strength": 0.5}]),
        ([], []),
        (None, None),
    ],
)
def test_adapters_are_an_id_strengths_by_id_or_a_list(given: Any, items: Any) -> None:
    assert plain_options({"adapters": given, "steps": 4}) == {"adapters": items, "steps": 4}


def test_prompts_are_a_text_pairs_or_objects() -> None:
    assert prompt_items("calm") == [{"text": "calm"}]
    given = [("calm", np.float32(0.5)), ("loud", np.arange(2.0)), {"text": "fast"}]
    assert prompt_items(given) == [
        {"text": "calm", "weight": 0.5}, {"text": "loud", "weight": [0.0, 1.0]}, {"text": "fast"}
    ]  # fmt: skip


def test_arrays_become_lists() -> None:
    given = {"a": np.arange(2.0), "b": ({"weight": np.float32(0.5)},), "c": "text", "d": None}
    assert json_values(given) == {"a": [0.0, 1.0], "b": [{"weight": 0.5}], "c": "text", "d": None}
