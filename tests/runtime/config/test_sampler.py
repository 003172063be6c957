"""[guidance]: the rule of a bundle's guidance, its numbers, and what is refused when it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.factories import tiny_bundle

from runtime.base.errors import ConfigError, RequestError
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.sampler import APG, GuidanceSpec


def loaded(folder: Path, rule: str, more: str = "") -> Bundle:
    path = tiny_bundle(folder, rule=rule) / "bundle.toml"
    path.write_text(path.read_text(encoding="utf-8") + more, encoding="utf-8")
    return load_bundle(folder)


def test_a_bundle_without_the_table_is_what_it_was(tmp_path: Path) -> None:
    without, with_it = loaded(tmp_path / "a", ""), loaded(tmp_path / "b", 'rule = "apg"\nnorm_limit = 2.5')
    assert without.guidance == with_it.guidance == APG
    assert (APG.rule, APG.momentum, APG.norm_limit, APG.parallel, APG.norms) == ("apg", -0.75, 2.5, 0.0, "channel")
    assert without.settings_json() == with_it.settings_json()
    assert b"norm_limit" not in without.settings_json()
    assert APG.made_with({"guidance"}) == {}


def test_each_rule_has_its_own_defaults() -> None:
    plain = GuidanceSpec(rule="plain")
    assert (plain.norms, plain.momentum, plain.norm_limit, plain.parallel, plain.rescale) == ("all", *[None] * 3, 0.0)
    assert plain.made_with({"guidance", "dcw"}) == {"guidance": {"rule": "plain", "norms": "all"}}
    assert plain.made_with({"dcw"}) == {}


@pytest.mark.parametrize("number", ["norm_limit = 2", "parallel = 0.5", 'norms = "all"'])
def test_a_number_of_the_graph_is_a_part_of_the_model_one_of_each_step_is_not_of_its_engine(number: str) -> None:
    key, value = number.split(" = ")
    changed = GuidanceSpec.model_validate({key: value.strip('"')})
    assert changed.made_with({"guidance"}) != APG.made_with({"guidance"})
    assert GuidanceSpec(momentum=0.25, rescale=0.5).made_with({"guidance"}) == {}


def test_other_numbers_are_another_model(tmp_path: Path) -> None:
    rules = ("", 'rule = "plain"', "momentum = 0.25", "rescale = 0.5")
    settings = [loaded(tmp_path / str(index), rule).settings_json() for index, rule in enumerate(rules)]
    assert len(set(settings)) == len(rules)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ('rule = "cfg"', "guidance.rule: expected 'plain' or 'apg'"),
        (
            'rule = "plain"\nmomentum = 0.0',
            "guidance: momentum is a number of rule = .apg., and the rule is plain",
        ),
        ('rule = "plain"\nnorm_limit = 2.5', "guidance: norm_limit is a number of rule"),
        ('rule = "plain"\nparallel = 0.0', "guidance: parallel is a number of rule"),
        ("momentum = -1.5", "guidance.momentum: expected at least -1"),
        ("norm_limit = -1", "guidance.norm_limit: expected at least 0"),
        ("norm_limit = inf", "guidance.norm_limit: expected"),
        ("parallel = 1.5", "guidance.parallel: expected at most 1"),
        ("rescale = 1.5", "guidance.rescale: expected at most 1"),
        ('norms = "frame"', "guidance.norms: expected 'channel' or 'all'"),
        ("normlimit = 2", "guidance.normlimit: is not a known name; did you mean norm_limit"),
    ],
)
def test_what_is_wrong_is_said(rule: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"bundle\.toml.*{says}"):
        loaded(tmp_path, rule)


def test_a_guidance_that_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path) / "bundle.toml"
    path.write_text(f"guidance = 3\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    with pytest.raises(ConfigError, match="guidance: expected a table of names and values"):
        load_bundle(tmp_path)


def test_a_plain_rule_has_no_momentum_to_choose(tmp_path: Path) -> None:
    options = loaded(tmp_path, 'rule = "plain"').options
    assert options.without_choice == {"momentum"}
    with pytest.raises(RequestError, match=r"is 0.5, this model takes 0 alone \(its guidance is plain, \[guidance\]"):
        options.check({"momentum": 0.5})
    with pytest.raises(ConfigError, match=r"options.momentum is left out: \[guidance\] says which one is taken"):
        loaded(tmp_path, 'rule = "plain"', "\n[options]\nmomentum = { max = 0 }\n")


def test_a_default_that_options_do_not_take_is_refused_but_none_that_was_there_before(tmp_path: Path) -> None:
    options = "\n[options]\nmomentum = { min = 0, max = 0.5 }\n"
    assert loaded(tmp_path / "a", "", options).guidance == APG
    with pytest.raises(ConfigError, match=r"guidance.momentum is -0.5, expected 0 to 0.5, as"):
        loaded(tmp_path / "b", "momentum = -0.5", options)
