"""Templates of the bundle: the texts of ACE-Step's pipeline, and what a template may contain; arrays beside it."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.factories import tiny_bundle
from helpers.paths import TESTS
from hypothesis import given
from hypothesis import strategies as st

from runtime.base.errors import ConfigError, FileError
from runtime.config.bundle import load_bundle
from runtime.config.conditions import DEFAULTS, TextEncoderSpec, filled, placeholders, read_matrix

# Written by the pipeline itself; tests/engine_build/export/acestep/test_text_encoder.py compares it again.
STORED = json.loads((TESTS / "data" / "acestep_texts.json").read_text(encoding="utf-8"))
TENSORS = {
    "inputs": {"tokens": "input_ids", "mask": "attention_mask"},
    "outputs": {"condition": "condition", "mask": "condition_mask"},
}


@pytest.fixture(scope="module")
def acestep() -> TextEncoderSpec:
    spec = STORED["text_encoder"]
    return TextEncoderSpec.model_validate({**spec, **TENSORS, "lyrics": {**spec["lyrics"], **TENSORS}})


@pytest.mark.parametrize("case", STORED["cases"], ids=lambda case: json.dumps(case["values"]))
def test_texts_are_those_of_the_pipeline(acestep: TextEncoderSpec, case: dict[str, Any]) -> None:
    assert acestep.lyrics is not None
    text = acestep.text(case["prompt"], case["seconds"], case["values"])
    assert [text, filled(acestep.lyrics.template, {**DEFAULTS, **case["values"]})] == case["texts"]


def test_placeholders_are_replaced_at_once() -> None:
    assert filled("{prompt} {bpm} {x}", {"prompt": "{bpm}", "bpm": 3}) == "{bpm} 3 {x}"
    assert filled("{bpm}, {bpm}", {"bpm": 120.0}) + filled("{bpm}", {"bpm": 93.57}) == "120, 12093.57"
    assert filled("{bpm}{key}", {"key": None}, "N/A") == "N/AN/A"
    assert placeholders("{prompt} {seconds} {other} {bpm}") == {"prompt", "seconds", "bpm"}


def test_the_placeholders_of_all_templates(acestep: TextEncoderSpec) -> None:
    metadata = {"bpm", "key", "time_signature", "seconds", "prompt"}
    assert acestep.placeholders == metadata | {"instruction", "track", "track_classes", "lyrics", "language"}


def test_the_graphs_of_conditions_by_engine(tmp_path: Path) -> None:
    assert list(load_bundle(tiny_bundle(tmp_path / "a")).condition_graphs) == ["text_encoder"]
    names = ["text_encoder", "lyric_encoder", "timbre_encoder"]
    assert list(load_bundle(tiny_bundle(tmp_path / "b", conditions=True)).condition_graphs) == names


def test_the_names_of_meanings_by_kind(tmp_path: Path) -> None:
    names = load_bundle(tiny_bundle(tmp_path / "a", meaning=True)).meaning_names()
    assert [*names.items()][1:] == [("genre", ("rock", "jazz", "ambient")), ("tempo", ("150 bpm",))]
    assert load_bundle(tiny_bundle(tmp_path / "b")).meaning_names() == {}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, r"meaning\.json cannot be read"),
        ("{", r"meaning\.json cannot be read"),
        ("[" * 100_000, r"meaning\.json cannot be read"),
        ("{}", "does not hold names by kind"),
        ("3", "does not hold names by kind"),
        ('[["genre", ["rock"]]]', "does not hold names by kind"),
        ('{"genre": "rock"}', "does not hold names by kind"),
        ('{"genre": []}', "does not hold names by kind"),
        ('{"genre": ["rock", " "]}', "does not hold names by kind"),
        ('{"genre": ["rock", 3]}', "does not hold names by kind"),
        ('{" ": ["rock"]}', "does not hold names by kind"),
        ('{"genre": ["rock"], "genre": ["jazz"]}', "has a kind twice: genre, genre"),
        ('{"layers": ["drums"], "mood": ["calm"]}', "has no kind 'genre' to draw from, it has layers, mood"),
    ],
)
def test_wrong_names_of_meanings_are_refused(tmp_path: Path, content: str | None, says: str) -> None:
    file = tiny_bundle(tmp_path, meaning=True) / "meaning.json"
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(ConfigError, match=says):
        load_bundle(tmp_path)


def npy(array: object) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array), allow_pickle=True)
    return buffer.getvalue()


ARRAY = np.arange(32, dtype=np.float32).reshape(4, 8)
NPY = npy(ARRAY)
CLAIMS = [b"(4, 99999999999999999999999)", b"(4000000000000, 8)", b"(-4, 8)", b"(True, 8)", b"4", b"((((", b"(04, 8)"]


@pytest.fixture(scope="module")
def array_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arrays") / "a.npy"


def test_an_array_is_read_as_it_was_saved(array_file: Path) -> None:
    for array in (ARRAY, np.asfortranarray(ARRAY)):
        array_file.write_bytes(npy(array))
        np.testing.assert_array_equal(read_matrix(array_file), ARRAY)


@pytest.mark.parametrize(
    "data",
    [
        *(NPY.replace(b"(4, 8)", claim) for claim in CLAIMS), b"", NPY[:-1], NPY[:9], NPY.replace(b"<f4", b"<f8"),
        npy(ARRAY[0]), npy([object()]), b"PK\x03\x04" + bytes(60), b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
    ],
)  # fmt: skip
def test_what_is_no_array_is_said(data: bytes, array_file: Path) -> None:
    array_file.write_bytes(data)
    with pytest.raises(FileError, match="does not hold float32"):
        read_matrix(array_file)


PIECES = st.binary(max_size=40) | st.text("(){}[]',:\\n0", max_size=40).map(str.encode)


@given(st.integers(0, 127), st.integers(0, 12), PIECES)
def test_a_damaged_array_is_read_or_an_error(array_file: Path, at: int, length: int, inserted: bytes) -> None:
    array_file.write_bytes(NPY[:at] + inserted + NPY[at + length :])
    try:
        matrix = read_matrix(array_file)
    except FileError:
        return
    assert matrix.ndim == 2
