"""[guidance] of bundle.toml: the rule that makes one velocity of the positive and the negative one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from runtime.config.explain import TomlTable

GuidanceRule = Literal["plain", "apg"]
# Numbers of the rule apg, with their defaults: those of ACE-Step.
APG_NUMBERS: Final = {"momentum": -0.75, "norm_limit": 2.5, "parallel": 0.0}
# What every step reads anew.
AT_RUN_TIME: Final = {"momentum", "rescale"}
NO_MOMENTUM: Final = 'its guidance is plain, [guidance] rule, and has none; rule = "apg" has'


class GuidanceSpec(TomlTable):
    """How velocities p (positive) and n (negative), `[T, C]` each, become one at a guidance of g.

    rule: "plain" is classifier-free guidance, n + g (p - n). "apg" is adaptive projected guidance (Sadat et al., arXiv
    2410.02416), p + (g - 1) d: M <- p - n + momentum M; d is M, made as short as norm_limit where it is longer (0: of
    any length), with `parallel` times its component along p. norms: what lengths and components are taken of: every
    channel over time ("channel", the default of apg, as in ACE-Step), or a generation as a whole ("all", the default of
    plain, as in the papers). momentum, rescale: defaults of the options. rescale r: the velocity v becomes
    v (1 + r (s - 1)), s the length of p over that of v; with norms "all" their standard deviations (Lin et al., arXiv
    2305.08891). momentum, norm_limit, parallel: None in the rule plain.
    """

    rule: GuidanceRule = "apg"
    momentum: float | None = Field(default=None, ge=-1, le=1)
    norm_limit: float | None = Field(default=None, ge=0, le=1e6)
    parallel: float | None = Field(default=None, ge=0, le=1)
    norms: Literal["channel", "all"] = "channel"
    rescale: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _with_defaults_of_the_rule(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        if table.get("rule") != "plain":
            return {**APG_NUMBERS, **table}
        for name in APG_NUMBERS.keys() & table.keys():
            raise ValueError(f'{name} is a number of rule = "apg", and the rule is plain: leave it out')
        return {"norms": "all", **table}

    def made_with(self, features: Collection[str]) -> dict[str, Any]:
        """What a step engine with these features is made with, as a build option; {} where it is the default."""
        ours, default = (spec.model_dump(exclude=AT_RUN_TIME, exclude_none=True) for spec in (self, APG))
        return {"guidance": ours} if "guidance" in features and ours != default else {}


APG: Final = GuidanceSpec()
