"""Which model made something."""

from __future__ import annotations

from runtime.config.deployment import ModelIdentity

HERE = ModelIdentity(64 * "a", "fp32")


def test_equal_models_do_not_differ() -> None:
    assert HERE.difference(ModelIdentity(64 * "a", "fp32")) == ""


def test_what_differs_is_said_in_words() -> None:
    assert HERE.difference(ModelIdentity(64 * "b", "int8")) == "another model (bbbbbbbbbbbb; this is aaaaaaaaaaaa)"
    assert HERE.difference(ModelIdentity(64 * "a", "int8")) == ("this model in another precision (int8; this is fp32)")
    assert HERE.difference(ModelIdentity()) == "a model that is not named"
