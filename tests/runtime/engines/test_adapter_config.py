"""Configurations of adapters: what they change is computed, or refused by name. PEFT says which is right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.adapters import deltas, random_factors, write_peft

from runtime.base.errors import AdapterError
from runtime.config.decoder import AdapterMatrix, AdapterSpec
from runtime.engines.adapter_config import CONFIG_NAME, HARMLESS, READ, REFUSED, AdapterConfig
from runtime.engines.adapter_files import read_adapter

SIZES = {f"layers.{index}.{name}": size for index in (0, 1) for name, size in (("a", (12, 10)), ("b", (10, 12)))}
SPEC = AdapterSpec(
    matrices={name: AdapterMatrix(weight=name, inputs=size[0], outputs=size[1]) for name, size in SIZES.items()}
)


@pytest.mark.parametrize("key", [*REFUSED, "a_key_of_peft_1.0"])
@pytest.mark.parametrize("value", [True, "all", [1], {"a": 1}, 3])
def test_a_key_that_says_more_than_the_factors_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(AdapterError, match=rf"(?s)^here: '?{key}.*fix: .*"):
        AdapterConfig("here", {"peft_type": "LORA", key: value})


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_a_key_that_is_not_set_says_nothing(value: Any) -> None:
    AdapterConfig(
        "here", {"peft_type": "LORA", **dict.fromkeys([*REFUSED, "a_key_of_peft_1.0"], value), "bias": "none"}
    )


@pytest.mark.parametrize(
    "value", ["pissa", "pissa_niter_16", "olora", "OLoRA", "corda", "loftq", "lora_ga", "new", 1, {}]
)
def test_a_beginning_at_other_weights_is_refused_with_what_makes_a_plain_lora_of_it(value: Any) -> None:
    with pytest.raises(AdapterError, match=r"(?s)init_lora_weights.*path_initial_model_for_weight_conversion"):
        AdapterConfig("here", {"peft_type": "LORA", "init_lora_weights": value})


@pytest.mark.parametrize(
    "changes",
    [
        {"exclude_modules": ["b"]},
        {"exclude_modules": r".*\.1\.a"},
        {"target_modules": ["a"]},
        {"target_modules": r"layers\.0\..*"},
        {"target_modules": ["a", "b"], "layers_to_transform": [0]},
        {"target_modules": ["a", "b"], "layers_to_transform": 1, "layers_pattern": "layers"},
    ],
)
def test_factors_that_the_configuration_leaves_out_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "soft", random_factors(SPEC, 4, seed=1), **changes)
    with pytest.raises(AdapterError, match=rf"{CONFIG_NAME}: {list(changes)[-1] if len(changes) < 3 else 'layers_to'}"):
        read_adapter(folder, SPEC)


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": "all-linear"},
        {"target_modules": ["a", "b"], "exclude_modules": ["c"], "layers_to_transform": [0, 1]},
        {"target_modules": list(SIZES), "layers_to_transform": [0]},
        {"target_modules": r".*\.(a|b)"},
        {"target_modules": r"^(?!text).*\.(a|b)", "exclude_modules": "(?<=x)a"},
    ],
)
def test_factors_that_it_names_are_all_applied(changes: dict[str, Any], tmp_path: Path) -> None:
    factors = random_factors(SPEC, 4, seed=1)
    check(write_peft(tmp_path / "soft", factors, **changes), deltas(factors, 2.0))


def test_settings_of_a_trainer_beside_the_factors_say_nothing() -> None:
    AdapterConfig("here", {"r": 4, "lora_alpha": 4, "steps": 2000, "model": "medium"}, has_others=True)


@pytest.mark.parametrize("text", [b"", b'{"r": 4', b"[]", b"\xff", "{}".encode("utf-16")])
def test_a_broken_configuration_is_named_and_not_its_weights(text: bytes, tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "soft", random_factors(SPEC, 4, seed=1))
    (folder / CONFIG_NAME).write_bytes(text)
    with pytest.raises(AdapterError, match=rf"^{folder / CONFIG_NAME}: "):
        read_adapter(folder, SPEC)


def test_a_configuration_may_begin_with_the_mark_of_windows(tmp_path: Path) -> None:
    factors = random_factors(SPEC, 4, seed=1)
    folder = write_peft(tmp_path / "soft", factors)
    (folder / CONFIG_NAME).write_bytes(b"\xef\xbb\xbf" + (folder / CONFIG_NAME).read_bytes())
    check(folder, deltas(factors, 2.0))


def test_a_configuration_that_cannot_be_read_is_not_none(tmp_path: Path) -> None:
    """Without it the scale is another one."""
    folder = write_peft(tmp_path / "soft", random_factors(SPEC, 4, seed=1))
    (folder / CONFIG_NAME).unlink()
    (folder / CONFIG_NAME).symlink_to("gone.json")
    with pytest.raises(AdapterError, match=CONFIG_NAME):
        read_adapter(folder, SPEC)


def check(folder: Path, expected: dict[str, Any]) -> None:
    """expected: what each module's weight `[in, out]` changes by."""
    adapter = read_adapter(folder, SPEC)
    for name, (inputs, outputs) in SPEC.places.items():
        found = adapter.a[:, inputs].T @ adapter.b[:, outputs]
        np.testing.assert_allclose(found, expected.get(name, np.zeros_like(found)), atol=1e-5)


@pytest.fixture(scope="module")
def base() -> Any:
    """A model of four linear layers."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            pairs = [{"a": torch.nn.Linear(12, 10), "b": torch.nn.Linear(10, 12, bias=False)} for _ in range(2)]
            self.layers = torch.nn.ModuleList([torch.nn.ModuleDict(pair) for pair in pairs])

        def forward(self, values: Any) -> Any:
            for layer in self.layers:
                values = layer["b"](torch.tanh(layer["a"](values)))
            return values

    return Model()


def trained(base: Any, folder: Path, config: Any, save: Callable[[Any], None]) -> None:
    """Train an adapter for some steps; `folder` is the one before them. save: writes the trained one."""
    import torch
    from peft import get_peft_model

    torch.manual_seed(1)
    model = get_peft_model(copy.deepcopy(base), config)
    model.save_pretrained(folder)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.05)
    for _ in range(5):
        optimizer.zero_grad()
        (model(torch.randn(8, 12)) - 1).square().mean().backward()
        optimizer.step()
    save(model.eval())


def changes_of(base: Any, folder: Path) -> dict[str, Any]:
    """What PEFT changes the model's weights by, `[in, out]`."""
    from peft import PeftModel

    merged = PeftModel.from_pretrained(copy.deepcopy(base), folder).eval().merge_and_unload()
    before = dict(base.named_parameters())
    return {
        name.removesuffix(".weight"): (weight - before[name]).detach().numpy().T
        for name, weight in merged.named_parameters()
        if weight.ndim == 2
    }


def config_of(**changes: Any) -> Any:
    from peft import LoraConfig

    return LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ["a", "b"], **changes})


# Settings of PEFT -> whether their adapters are plain LoRA.
SETTINGS: list[tuple[dict[str, Any], bool]] = [
    *(({"init_lora_weights": value}, True) for value in (True, False, "gaussian", "orthogonal", "eva", "mica")),
    *(({"init_lora_weights": value}, False) for value in ("pissa", "pissa_niter_4", "olora")),
    ({"use_rslora": True, "lora_dropout": 0.3}, True),
    ({"rank_pattern": {"a": 2}, "alpha_pattern": {r"layers\.1\.b": 3}, "use_rslora": True}, True),
    ({"rank_pattern": {"layers.0.a": 6}, "alpha_pattern": {"^layers.0.a": 5, "a": 1}}, True),
    ({"fan_in_fan_out": True, "ensure_weight_tying": True, "exclude_modules": ["1.b"]}, True),
    ({"layers_to_transform": [1], "layers_pattern": "layers"}, True),
    ({"target_modules": "all-linear"}, True),
    ({"target_modules": r".*\.0\.[ab]"}, True),
    ({"use_dora": True}, False),
    ({"bias": "all"}, False),
    ({"bias": "lora_only"}, False),
    ({"lora_bias": True, "target_modules": ["a"]}, False),
    ({"modules_to_save": ["layers.1.b"]}, False),
    ({"alora_invocation_tokens": [1]}, False),
    ({"use_qalora": True}, False),
]


@pytest.mark.export
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("settings", "is_plain"), SETTINGS, ids=lambda value: str(value)[1:60])
def test_what_peft_trains_changes_weights_as_in_peft_or_is_refused(
    settings: dict[str, Any], is_plain: bool, base: Any, tmp_path: Path
) -> None:
    config, folder = config_of(**settings), tmp_path / "trained"
    trained(base, tmp_path / "initial", config, lambda model: model.save_pretrained(folder))
    if is_plain:
        check(folder, changes_of(base, folder))
        return
    with pytest.raises(AdapterError, match=rf"{CONFIG_NAME}: '?({'|'.join(settings)})"):
        read_adapter(folder, SPEC)


@pytest.mark.export
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("beginning", ["pissa", "pissa_niter_4", "olora"])
def test_the_command_of_the_error_makes_a_plain_lora_of_a_beginning_at_other_weights(
    beginning: str, base: Any, tmp_path: Path
) -> None:
    config, initial, plain = config_of(init_lora_weights=beginning), tmp_path / "initial", tmp_path / "plain"
    found: dict[str, Any] = {}

    def save(model: Any) -> None:
        model.save_pretrained(plain, path_initial_model_for_weight_conversion=str(initial))
        before = dict(base.named_parameters())
        weights = model.merge_and_unload().named_parameters()
        found.update({name.removesuffix(".weight"): (each - before[name]).detach().numpy().T for name, each in weights})

    trained(base, initial, config, save)
    check(plain, {name: change for name, change in found.items() if name in SIZES})
    assert max(np.abs(found[name]).max() for name in SIZES) > 1e-3


@pytest.mark.export
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["LoHaConfig", "LoKrConfig", "VeloraConfig", "MontecloraConfig"])
def test_the_command_of_the_error_makes_a_plain_lora_of_another_kind(kind: str, base: Any, tmp_path: Path) -> None:
    import peft
    from peft.tuners.lora import config as variants

    if kind in ("LoHaConfig", "LoKrConfig"):
        config = getattr(peft, kind)(r=2, alpha=2, target_modules=["a", "b"], init_weights=False)
    else:
        name = f"{kind.removesuffix('Config').lower()}_config"
        config = config_of(**{name: getattr(variants, kind)(**({"num_groups": 1} if name == "velora_config" else {}))})
    folder, plain = tmp_path / "trained", tmp_path / "plain"

    def save(model: Any) -> None:
        model.save_pretrained(folder)
        peft.save_as_lora(plain, model, rank=10)

    trained(base, tmp_path / "initial", config, save)
    with pytest.raises(AdapterError, match=r"(?s)adapter_config\.json: .*peft\.save_as_lora"):
        read_adapter(folder, SPEC)
    check(plain, changes_of(base, folder))


@pytest.mark.export
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["use_dora", "bias", "kasa_config", "use_bdlora", "use_qalora"])
def test_what_no_plain_lora_has_can_be_merged_as_the_error_says(kind: str, base: Any, tmp_path: Path) -> None:
    import torch
    from peft.tuners.lora.config import BdLoraConfig, KasaConfig

    values = {"bias": "all", "kasa_config": KasaConfig()}
    values["use_bdlora"] = BdLoraConfig(target_modules_bd_a=[".a"], target_modules_bd_b=[".b"], nblocks=2)

    def save(model: Any) -> None:
        model.save_pretrained(tmp_path / "trained")
        given = torch.randn(4, 12)
        wanted = model(given)
        torch.testing.assert_close(model.merge_and_unload()(given), wanted)

    trained(base, tmp_path / "initial", config_of(**{kind: values.get(kind, True)}), save)
    with pytest.raises(AdapterError, match=rf"(?s)adapter_config\.json: {kind} .*model\.merge_and_unload\(\)"):
        read_adapter(tmp_path / "trained", SPEC)


@pytest.mark.export
def test_every_key_of_peft_is_known() -> None:
    """One of a newer release is refused where it is set, until it is one of these."""
    import dataclasses

    from peft import LoraConfig

    keys = {field.name for field in dataclasses.fields(LoraConfig)}
    assert keys - {*READ, *HARMLESS, *REFUSED} == set()
    assert [key for key in READ if (key in HARMLESS) or key in REFUSED] == []
