"""Files of LoRA adapters, and their catalog."""

from __future__ import annotations

import json
import os
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from helpers.adapters import Arrays, check_deltas, deltas, random_factors, write_peft
from helpers.factories import tiny_bundle, tiny_deployment
from helpers.left_behind import leave_behind, without_rights
from helpers.paths import ROOT
from numpy.typing import NDArray
from safetensors.numpy import save_file

from runtime.base.errors import AdapterError, ConfigError, RequestError
from runtime.base.untrusted import quoted
from runtime.commands.generate_options import flag_values
from runtime.config.bundle import load_bundle
from runtime.config.decoder import AdapterSpec
from runtime.config.deployment import load_deployment
from runtime.engines.adapter_files import read_adapter, read_catalog
from runtime.engines.adapters import Adapter, AdapterCatalog, total_rank
from runtime.live.protocol.messages import SetAdapter, client_message
from runtime.requests.options import parse_options

IN, TIME, OUT = "layers.0.in", "layers.0.time", "layers.0.out"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> AdapterSpec:
    found = load_bundle(tiny_bundle(tmp_path_factory.mktemp("tiny"), adapters=True)).adapters
    assert found is not None
    return found


def change(adapter: Adapter, spec: AdapterSpec, module: str) -> NDArray[Any]:
    """What an adapter adds to a module's weight `[in, out]` at strength 1."""
    inputs, outputs = spec.places[module]
    return adapter.a[:, inputs].T @ adapter.b[:, outputs]


def check_change(adapter: Adapter, spec: AdapterSpec, expected: Arrays) -> None:
    for module in spec.matrices:
        found = change(adapter, spec, module)
        np.testing.assert_allclose(found, expected.get(module, np.zeros_like(found)), rtol=1e-5, atol=1e-6)


def test_an_adapter_of_peft_has_the_scale_of_its_configuration(spec: AdapterSpec, tmp_path: Path) -> None:
    factors = random_factors(spec, 4, seed=1, modules=(IN, OUT))
    adapter = read_adapter(write_peft(tmp_path / "soft", factors, {"trigger_words": "soft, felt"}), spec)
    check_change(adapter, spec, deltas(factors, 8 / 4))
    assert (adapter.id, adapter.rank, adapter.modules) == ("soft", 4, (IN, OUT))
    assert (adapter.base_model, adapter.trigger_words) == ("tiny", ("soft", "felt"))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"modelspec.trigger_phrase": "warm tape"}, ("warm tape",)),
        ({"trigger_words": '["soft, felt", "b"]', "modelspec.trigger_phrase": "c"}, ("soft, felt", "b")),
        ({"trigger_words": " , a"}, ("a",)),
        ({}, ()),
    ],
)
def test_trigger_words_are_those_of_the_file(
    metadata: dict[str, str], words: tuple[str, ...], spec: AdapterSpec, tmp_path: Path
) -> None:
    factors = random_factors(spec, 4, seed=1)
    assert read_adapter(write_peft(tmp_path / "soft", factors, metadata), spec).trigger_words == words


def test_rank_stabilized_scale(spec: AdapterSpec, tmp_path: Path) -> None:
    factors = random_factors(spec, 4, seed=1)
    adapter = read_adapter(write_peft(tmp_path / "soft", factors, use_rslora=True), spec)
    check_change(adapter, spec, deltas(factors, 8 / np.sqrt(4)))


def test_patterns_give_modules_their_own_rank_and_alpha(spec: AdapterSpec, tmp_path: Path) -> None:
    factors = random_factors(spec, 4, seed=1, modules=(IN,)) | random_factors(spec, 6, seed=2, modules=(OUT,))
    folder = write_peft(tmp_path / "soft", factors, rank_pattern={"out": 6}, alpha_pattern={r"layers\.\d+\.out": 3})
    expected = deltas(random_factors(spec, 4, seed=1, modules=(IN,)), 8 / 4)
    expected |= deltas(random_factors(spec, 6, seed=2, modules=(OUT,)), 3 / 6)
    adapter = read_adapter(folder, spec)
    check_change(adapter, spec, expected)
    assert adapter.rank == 6


def test_names_of_the_models_own_trainer(spec: AdapterSpec, tmp_path: Path) -> None:
    factors = random_factors(spec, 4, seed=1, modules=(IN,))
    renamed = {name.replace(".in.", ".x_in."): values for name, values in factors.items()}
    check_change(read_adapter(write_peft(tmp_path / "soft", renamed), spec), spec, deltas(factors, 2.0))


def test_an_adapter_of_diffusers_has_its_alphas_in_tensors_or_in_metadata(spec: AdapterSpec, tmp_path: Path) -> None:
    factors = random_factors(spec, 4, seed=1)
    named = {f"transformer.{name}": np.ascontiguousarray(values) for name, values in factors.items()}
    alphas = {f"transformer.{module}.alpha": np.array(2.0, np.float32) for module in spec.matrices}
    config = {"transformer.r": 4, "transformer.lora_alpha": 12, "transformer.use_rslora": False}
    for name, tensors, metadata, scale in (
        ("plain", named, None, 1.0),
        ("alphas", named | alphas, None, 2 / 4),
        ("metadata", named, {"lora_adapter_metadata": json.dumps(config)}, 12 / 4),
    ):
        path = tmp_path / f"{name}.safetensors"
        save_file(tensors, path, metadata)
        adapter = read_adapter(path, spec)
        check_change(adapter, spec, deltas(factors, scale))
        assert adapter.id == name


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_is_read_exactly(dtype: str, spec: AdapterSpec, tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0, 0.25, 3.0, 0.0, -0.5, 8.0, 1.0]], np.float32)
    b = np.ones((16, 1), np.float32)
    raw = [
        (array.view(np.uint32) >> 16).astype("<u2").tobytes() if dtype == "BF16" else array.astype("<f2").tobytes()
        for array in (values, b)
    ]
    header: dict[str, Any] = {}
    for name, array, begin, end in (("A", values, 0, len(raw[0])), ("B", b, len(raw[0]), len(raw[0]) + len(raw[1]))):
        entry = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
        header[f"transformer.{IN}.lora_{name}.weight"] = entry
    text = json.dumps(header).encode()
    path = tmp_path / "half.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(raw))
    np.testing.assert_array_equal(read_adapter(path, spec).a[:, :8], values)


def of_a_trainer(folder: Path, factors: Arrays, **config: Any) -> Path:
    """A file of a trainer that uses torch's parametrizations, with its own names of modules."""
    names = {
        name: name.removesuffix(".weight").replace(".lora_", ".parametrizations.weight.0.lora_") for name in factors
    }
    path = folder / "own.safetensors"
    tensors = {f"net.blocks.{names[name].removeprefix('layers.')}": values for name, values in factors.items()}
    save_file(
        {name: np.ascontiguousarray(values, np.float16) for name, values in tensors.items()},
        path,
        {"lora_config": json.dumps({"rank": 4, "alpha": 12, "adapter_type": "lora", "include": None, **config})},
    )
    return path


def own_spec(spec: AdapterSpec, **changes: Any) -> AdapterSpec:
    return AdapterSpec(**{"aliases": {"net": "", "blocks": "layers"}, "matrices": spec.matrices, **changes})


def test_a_trainer_with_parametrizations_names_modules_and_scale_in_its_own_way(
    spec: AdapterSpec, tmp_path: Path
) -> None:
    """In half precision, with its outputs in another order."""
    factors = {name: values.astype(np.float16) for name, values in random_factors(spec, 4, seed=1).items()}
    adapter = read_adapter(of_a_trainer(tmp_path, factors), own_spec(spec))
    plain = {name: values.astype(np.float32) for name, values in factors.items()}
    check_change(adapter, spec, deltas(plain, 12 / 4))

    order = (2, 0, 3, 1)
    changed = read_adapter(of_a_trainer(tmp_path, factors), own_spec(spec, orders={"in": order}))
    b = f"{IN}.lora_B.weight"
    plain[b] = np.concatenate([np.split(plain[b], 4)[index] for index in order])
    check_change(changed, spec, deltas(plain, 12 / 4))


def test_outputs_of_files_without_aliases_are_in_the_bundle_s_order(spec: AdapterSpec, tmp_path: Path) -> None:
    factors = random_factors(spec, 4, seed=1)
    adapter = read_adapter(write_peft(tmp_path / "soft", factors), own_spec(spec, orders={"in": (1, 0)}))
    check_change(adapter, spec, deltas(factors, 2.0))


@pytest.mark.parametrize(
    ("order", "message"),
    [((0, 0), "no order of parts"), ((0,), "no order of parts"), ((2, 1, 0), "16 outputs, not 3 parts")],
)
def test_orders_are_of_equal_parts(order: tuple[int, ...], message: str, spec: AdapterSpec) -> None:
    with pytest.raises(ValueError, match=message):
        own_spec(spec, orders={"in": order})


@pytest.mark.parametrize("kind", ["dora-rows", "lora-xs", "bora"])
def test_other_kinds_of_a_trainer_are_refused_with_its_option(kind: str, spec: AdapterSpec, tmp_path: Path) -> None:
    path = of_a_trainer(tmp_path, random_factors(spec, 4, seed=1), adapter_type=kind)
    with pytest.raises(AdapterError, match=rf"(?s)of type '?{kind}'?, expected a plain LoRA.*--adapter_type lora"):
        read_adapter(path, own_spec(spec))


def test_what_a_trainer_adapts_outside_the_decoder_is_refused_with_what_to_do(
    spec: AdapterSpec, tmp_path: Path
) -> None:
    factors = random_factors(spec, 4, seed=1, modules=(IN,))
    factors |= {name.replace(IN, "text.length"): values for name, values in factors.items()}
    refusing = own_spec(spec, refused={"text": "train it with --exclude text"})
    with pytest.raises(AdapterError, match=r"(?s)text\.length.*\[adapters\].*train it with --exclude text"):
        read_adapter(write_peft(tmp_path / "soft", factors), refusing)


def test_files_of_peft_and_diffusers_have_the_weights_that_peft_computes() -> None:
    check_deltas(ROOT / "tests" / "data" / "adapters")


LORA_A, LORA_B = f"{IN}.lora_A.weight", f"{IN}.lora_B.weight"
RIGHT = np.ones((4, 8), np.float32)
# Tensors that are added, or taken out, the configuration, and what is said.
MISFITS: dict[str, tuple[dict[str, NDArray[Any] | None], dict[str, Any], str]] = {
    "name": ({LORA_A: None, "layers.7.in.lora_A.weight": RIGHT}, {}, r"layers\.7\.in.*\[adapters\]"),
    "shape": ({LORA_A: np.ones((4, 9), "f4")}, {}, r"layers\.0\.in\.lora_A\.weight.*\[4, 9\].*\[4, 8\]"),
    "rank": ({}, {"r": 3}, r"lora_A\.weight.*\[4, 8\].*\[3, 8\]"),
    "half": ({LORA_B: None}, {}, r"no lora_B of layers\.0\.in"),
    "DoRA": ({f"{IN}.lora_magnitude_vector": RIGHT[:, 0]}, {}, "DoRA.*lora_magnitude_vector"),
    "magnitude": ({f"{IN}.parametrizations.weight.0.magnitude": RIGHT[0]}, {}, r"DoRA.*weight\.0\.magnitude"),
    "bias": ({f"{IN}.lora_B.bias": RIGHT[0]}, {}, r"lora_B\.bias"),
    "dtype": ({LORA_A: np.ones((4, 8))}, {}, "F64.*expected F32, F16 or BF16"),
    "NaN": ({LORA_A: np.array([[np.nan] + [1.0] * 7] * 4, "f4")}, {}, "not finite"),
    "kind": ({}, {"peft_type": "LOHA"}, "LOHA.*expected a LoRA"),
    "alpha": ({}, {"lora_alpha": "8"}, "lora_alpha.*expected a number above 0"),
    "large alpha": ({}, {"lora_alpha": 10**400}, "lora_alpha.*expected a number above 0, at most 1000000"),
    "patterns": ({}, {"rank_pattern": 4}, "rank_pattern is '4', expected a JSON object"),
    "look-ahead": (
        {},
        {"alpha_pattern": {"(?=in)": 3}},
        r"alpha_pattern '\(\?=in\)': error: look-around.* not supported",
    ),
    "words": ({}, {"metadata": {"trigger_words": "[" * 5000}}, "trigger_words is not a JSON list"),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_what_does_not_fit_is_refused_by_name(kind: str, spec: AdapterSpec, tmp_path: Path) -> None:
    changes, config, says = MISFITS[kind]
    changed = {**random_factors(spec, 4, seed=1), **changes}
    factors = {name: values for name, values in changed.items() if values is not None}
    with pytest.raises(AdapterError, match=says):
        read_adapter(write_peft(tmp_path / "broken", factors, **config), spec)


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, b"\x10" + b"\0" * 7 + b"{" * 16, b"\x02" + b"\0" * 7 + b"{}"])
def test_files_that_are_no_adapters_are_refused(data: bytes, spec: AdapterSpec, tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(data)
    with pytest.raises(AdapterError, match="bad"):
        read_adapter(tmp_path / "bad.safetensors", spec)


def test_the_catalog_of_a_deployment_has_every_adapter_of_its_folder(tmp_path: Path) -> None:
    deployment = load_deployment(with_adapters(tmp_path))
    spec = load_bundle(deployment.bundle).adapters
    assert spec is not None
    for index, name in enumerate(("b", "a")):
        write_peft(tmp_path / "adapters" / name, random_factors(spec, 4, seed=index))
    catalog = read_catalog(deployment)
    assert list(catalog.adapters) == ["a", "b"]
    assert [use.strength for use in catalog.uses({"a": 0.7, "b": 0.0})] == [0.7]
    with pytest.raises(RequestError, match=r"(?s)no adapter .aa.*did you mean a"):
        catalog.uses({"aa": 1.0})


def catalog_beside(folder: Path, add: Callable[[Path, Path], object]) -> AdapterCatalog:
    """The catalog of a folder with the adapters `soft/` and `hard.safetensors`, to which `add` has added more."""
    deployment = load_deployment(with_adapters(folder))
    spec = load_bundle(deployment.bundle).adapters
    assert spec is not None
    assert deployment.adapters is not None
    soft = write_peft(deployment.adapters / "soft", random_factors(spec, 4, seed=1))
    hard = deployment.adapters / "hard.safetensors"
    save_file(random_factors(spec, 4, seed=2), hard)
    add(hard, soft)
    return read_catalog(deployment)


def warnings_of(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = [record for record in caplog.records if record.name == "tickrt.engines"]
    return record.getMessage()


def test_what_programs_leave_beside_adapters_is_skipped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names: list[str] = []

    def add(hard: Path, soft: Path) -> None:
        names.extend(leave_behind(hard.parent, hard.name))
        leave_behind(soft, "adapter_model.safetensors")

    assert list(catalog_beside(tmp_path, add).adapters) == ["hard", "soft"]
    text = warnings_of(caplog)
    assert [name for name in names if quoted(name) not in text] == []


@pytest.mark.parametrize(
    "add",
    [
        lambda hard, soft: (hard.parent / "empty").mkdir(),
        lambda hard, soft: (hard.parent / "gone.safetensors").symlink_to("nowhere"),
        lambda hard, soft: (hard.parent / "gone").symlink_to("nowhere"),
        lambda hard, soft: os.mkfifo(hard.parent / "pipe.safetensors"),
        lambda hard, soft: shutil.copy(hard, hard.parent / "hard - Copy (2).safetensors"),
        lambda hard, soft: shutil.copy(hard, hard.parent / "hard (1).safetensors"),
        lambda hard, soft: shutil.copytree(soft, hard.parent / "soft Kopie"),
        lambda hard, soft: (hard.parent / f"{'x' * 101}.safetensors").touch(),
        lambda hard, soft: Path(os.fsdecode(os.fsencode(hard.parent) + b"/\xe9.safetensors")).touch(),
        lambda hard, soft: (hard.parent / "a\nb.safetensors").touch(),
        lambda hard, soft: write_peft(hard.parent / "half", {}).joinpath("adapter_model.safetensors").unlink(),
        lambda hard, soft: without_rights(hard.parent / shutil.copy(hard, hard.parent / "hard copy.safetensors")),
    ],
)
def test_what_is_no_adapter_is_skipped_with_a_warning(
    add: Callable[[Path, Path], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = {"adapters", "hard.safetensors", "soft"}
    assert list(catalog_beside(tmp_path, add).adapters) == ["hard", "soft"]
    (name,) = {path.name for path in (tmp_path / "adapters").iterdir()} - before
    assert quoted(name) in warnings_of(caplog)


def test_other_files_beside_adapters_need_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalog = catalog_beside(tmp_path, lambda hard, soft: (hard.parent / "README.md").touch())
    assert (list(catalog.adapters), caplog.records) == (["hard", "soft"], [])


@pytest.mark.parametrize("name", ["été", "🎹 мягкий 柔", "👩‍🎤", "x - Copy (2)", "a:b", "'; --", "x" * 100])
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_the_name_of_a_file_is_the_id_in_either_form(name: str, form: Literal["NFC", "NFD"], tmp_path: Path) -> None:
    stored = unicodedata.normalize(form, name)
    catalog = catalog_beside(tmp_path, lambda hard, soft: hard.rename(hard.parent / f"{stored}.safetensors"))
    assert name in catalog.adapters
    for typed in (name, unicodedata.normalize("NFD", name)):
        options = parse_options({"prompt": "a", "adapters": [{"id": typed, "strength": 0.5}]})
        assert catalog.uses({item.id: item.strength for item in options.adapters or ()})[0].adapter.id == name
        assert isinstance(
            message := client_message({"type": "adapter", "seq": 1, "id": typed, "strength": 1}), SetAdapter
        )
        assert message.id == name
        flags = flag_values([], [], {}, [f"{typed}:0.5"])
        assert parse_options({"prompt": "a", **flags}).adapters == options.adapters


def test_two_adapters_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"(?s)two adapters 'hard'.*rename"):
        catalog_beside(tmp_path, lambda hard, soft: soft.rename(hard.parent / "hard"))


def test_a_folder_that_is_an_adapter_itself_is_named(tmp_path: Path) -> None:
    """Its weights would be read without its configuration, at another scale."""
    with pytest.raises(ConfigError, match=r"(?s)adapters is one adapter, expected a folder of adapters.*fix: "):
        catalog_beside(tmp_path, lambda hard, soft: shutil.copytree(soft, hard.parent, dirs_exist_ok=True))


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    deployment = load_deployment(with_adapters(tmp_path))
    (tmp_path / "adapters").rmdir()
    for make in (lambda: None, (tmp_path / "adapters").touch):
        make()
        with pytest.raises(ConfigError, match=r"(?s)adapters is no folder.*create it"):
            read_catalog(deployment)


def with_adapters(folder: Path, rank: int = 16) -> Path:
    (folder / "adapters").mkdir()
    path = tiny_deployment(folder, adapters=True)
    text = path.read_text().replace('target = "cpu"', 'target = "cpu"\nadapters = "adapters"')
    path.write_text(text.replace("queue = 8", f"queue = 8\nadapter_rank = {rank}"))
    return path


def test_an_adapter_that_is_read_again_is_the_same_until_its_file_changes(spec: AdapterSpec, tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "soft", random_factors(spec, 4, seed=1))
    first, again = read_adapter(folder, spec), read_adapter(folder, spec)
    changed = read_adapter(write_peft(folder, random_factors(spec, 4, seed=2)), spec)
    assert first == again != changed
    assert total_rank([first, again, changed]) == 8


def test_a_deployment_with_adapters_needs_a_bundle_that_takes_them(tmp_path: Path) -> None:
    path = with_adapters(tmp_path)
    tiny_bundle(tmp_path / "tiny")
    with pytest.raises(ConfigError, match=r"has no \[adapters\]"):
        read_catalog(load_deployment(path))


FACTORS = np.zeros((12, 8), np.float32)
MANY = {name: Adapter(name, FACTORS, FACTORS) for name in ("soft", "hard")}


def test_unknown_adapters_are_refused() -> None:
    with pytest.raises(RequestError, match=r"(?s)no adapter 'sofd'.*did you mean soft"):
        AdapterCatalog(MANY, 0).find({"sofd": 1.0})
    with pytest.raises(RequestError, match="this server has none"):
        AdapterCatalog({}, 0).find({"soft": 1.0})


def test_ranks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RequestError, match=r"24 in sum.*takes 16"):
        AdapterCatalog(MANY, 16).uses({"soft": 1.0, "hard": 1.0})
    with pytest.raises(RequestError, match="without adapters"):
        AdapterCatalog(MANY, 0).uses({"soft": 1.0})
    assert len(AdapterCatalog(MANY, 0).find({"soft": 1.0, "hard": 1.0})) == 2
