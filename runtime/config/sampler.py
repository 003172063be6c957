"""[sampler] and [guidance] of bundle.toml: defaults of a generation, and the rule that makes one velocity of two."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from runtime.config.explain import TomlTable

# The order in which torch's noise of a seed is drawn: one frame's channels after another's, or the other way round.
NoiseLayout = Literal["time_channels", "channels_time"]
GuidanceRule = Literal["plain", "apg"]
# Numbers of the rule apg, with their defaults: those of ACE-Step.
APG_NUMBERS: Final = {"momentum": -0.75, "norm_limit": 2.5, "parallel": 0.0}
# Of a velocity's change since the step before.
MAX_EXTRAPOLATION: Final = 10.0
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


class DcwSpec(TomlTable):
    """Wavelet-domain correction of each step. A mode reads only its own strengths; the others stay 0."""

    mode: Literal["low", "high", "double", "pix"] = "double"
    low: float = Field(default=0.0, ge=-0.5, le=0.5)
    high: float = Field(default=0.0, ge=-0.5, le=0.5)

    @model_validator(mode="after")
    def _check_strengths(self) -> Self:
        unread = self.low if self.mode == "high" else self.high if self.mode != "double" else 0.0
        if unread:
            raise ValueError(f"mode {self.mode} does not read {'low' if self.mode == 'high' else 'high'}: leave it out")
        return self


class LogSnrSchedule(TomlTable):
    """Times at equal distances of their logarithmic signal-to-noise ratio, from `start` (noise) to `end` (data).

    The ratio at time t is ln((1 - t) / t), so t = sigmoid(-ratio). The first time is 1 and the last one 0, with
    any start and end.
    """

    kind: Literal["logsnr"]
    start: float = Field(ge=-10, le=10)
    end: float = Field(ge=-10, le=10)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.end - self.start < 1:
            raise ValueError("needs end at least 1 above start, or its times are hardly apart")
        return self


class FittedSteps(TomlTable):
    """K steps whose numbers were fitted to where many steps end: a bespoke solver (Shaul et al., arXiv 2403.01329).

    Step k computes a velocity v at times[k]; v + extrapolation[k] (v - v_prev) moves the latents as a step of Euler's
    method from times[k] to ends[k] does, which need not be the next of the times. The last one ends at 0.
    """

    times: tuple[float, ...] = Field(min_length=1)
    ends: tuple[float, ...]
    extrapolation: tuple[float, ...]

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        falls = self.times[0] == 1.0 and all(later < earlier for earlier, later in pairwise((*self.times, 0.0)))
        if not (falls and len(self.times) == len(self.ends) == len(self.extrapolation)):
            raise ValueError("expected times, ends and extrapolation of each step, the times from 1 down to above 0")
        if any(not 0.0 <= end < time for time, end in zip(self.times, self.ends, strict=True)) or self.ends[-1] != 0.0:
            raise ValueError("expected ends that are below the times of their steps, the last one 0")
        if self.extrapolation[0] != 0.0 or max(map(abs, self.extrapolation)) > MAX_EXTRAPOLATION:
            raise ValueError(
                f"expected an extrapolation of 0 in the first step, at most {MAX_EXTRAPOLATION:g} in others"
            )
        return self


class StepsSpec(TomlTable):
    """How many steps a generation takes by default, and their times. `live_steps` holds in live sessions, where a
    change should be heard soon.

    schedules: number of steps -> the time of each, in place of what [sampler] schedule or shift make of that number:
    where a generation gives no shift and starts from noise. kept: number of steps -> those that are computed, from 0
    on; the velocity of the others is extrapolated from the two before, so that they take no rows. There too, and where
    a step does nothing but follow its velocity. fitted: number of steps -> numbers of the solver "ab2" in place of its
    own; where `kept` holds.
    """

    steps: int = Field(default=8, ge=1)
    live_steps: int = Field(default_factory=lambda data: data["steps"], ge=1)
    schedules: Mapping[int, tuple[float, ...]] = {}
    kept: Mapping[int, tuple[int, ...]] = {}
    fitted: Mapping[int, FittedSteps] = {}

    @model_validator(mode="after")
    def _check_schedules(self) -> Self:
        for steps, times in self.schedules.items():
            falls = all(later < earlier for earlier, later in pairwise((*times, 0.0)))
            if len(times) != steps or not falls or times[0] != 1.0:
                raise ValueError(f"schedules.{steps}: expected {steps} times, from 1 down to above 0")
        for steps, kept in self.kept.items():
            if not kept or kept[0] != 0 or kept[-1] >= steps or any(b <= a for a, b in pairwise(kept)):
                raise ValueError(f"kept.{steps}: expected steps in order, from 0 to at most {steps - 1}")
        for steps, fitted in self.fitted.items():
            if len(fitted.times) != steps or steps in self.kept:
                raise ValueError(f"fitted.{steps}: expected {steps} steps, all of them computed")
        return self


class VelocitySpec(StepsSpec):
    """[sampler.velocity]: steps of velocity, of a decoder that jumps by default."""

    solver: Literal["ode", "sde", "ab2"] = "ode"


class SamplerSpec(StepsSpec):
    """Defaults of a generation.

    solver: "jump" is for decoders with a time_end; generations that ask for what a jump cannot do, or for another
    solver, take the steps of `velocity`.
    blend_power: several prompts are blended by the mean of this power of what each predicts, around silence; 1 is the
    mean of velocities, in which what one prompt plays alone is as weak as its share. blend_energy_below: in steps at
    times below it, power 2 takes its place. schedule: what the times of any number of steps are made by, in place of
    the linear schedule and its shift. noise_layout: the order in which torch's noise of a seed is drawn.
    guidance_reason: why the model takes no guidance but 1, such as "it is distilled: guidance is built in".
    """

    shift: float = Field(default=1.0, gt=0)
    schedule: LogSnrSchedule | None = None
    solver: Literal["ode", "sde", "ab2", "jump"] = "ode"
    velocity: VelocitySpec | None = None
    noise_layout: NoiseLayout = "time_channels"
    guidance: float = 1.0
    guidance_mode: Literal["full", "alternate"] = "full"
    guidance_reason: str = ""
    cfg_interval_start: float = Field(default=0.0, ge=0, le=1)
    cfg_interval_end: float = Field(default=1.0, ge=0, le=1)
    denoise: float = Field(default=1.0, ge=0, le=1)
    blend_power: Literal[1, 2, 4, 8] = 1
    blend_energy_below: float = Field(default=0.0, ge=0, le=1)
    dcw: DcwSpec = DcwSpec()

    @model_validator(mode="after")
    def _check_guidance(self) -> Self:
        if self.cfg_interval_start > self.cfg_interval_end:
            raise ValueError("needs cfg_interval_start <= cfg_interval_end")
        if self.guidance_reason and self.guidance != 1.0:
            raise ValueError("guidance_reason says that there is no guidance but 1, and guidance is not 1")
        return self

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.schedule is not None and "shift" in self.model_fields_set:
            raise ValueError("schedule and shift say the same thing: give one of them")
        return self

    @model_validator(mode="after")
    def _check_velocity(self) -> Self:
        if (self.velocity is None) == (self.solver == "jump"):
            raise ValueError('[sampler.velocity] goes with solver = "jump": give both or neither')
        return self

    def steps_of(self, solver: str) -> StepsSpec:
        """Steps and times by default, of a solver."""
        return self if self.velocity is None or solver == self.solver else self.velocity

    @model_validator(mode="after")
    def _check_blend(self) -> Self:
        if self.blend_energy_below and self.blend_power <= 2:
            raise ValueError(f"blend_energy_below is for blend_power 4 or 8, not {self.blend_power}: leave it out")
        return self
