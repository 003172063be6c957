"""The bodies of ElevenLabs' music and sound routes, and the options of a generation that they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from runtime.config.option_ranges import ANY_MODEL, NumberRange
from runtime.requests.option_types import MAX_CURVE_VALUES, MAX_PROMPTS, OptionModel, Text
from runtime.requests.request import MAX_SEED
from server.asgi.problems import Finding, ProblemError

MIN_MS, MAX_MS, MAX_SECTION_MS = 3_000, 600_000, 120_000
DEFAULT_INFLUENCE = 0.3
CURVE_VALUES_PER_S = 10
INSTRUMENTAL = "[Instrumental]"
SECTION_NAME = re.compile(r"\s*\[([^\]]*)\]")
DIRECTION = re.compile(r"\{([^{}]*)\}")


def unavailable(what: str) -> AfterValidator:
    """Refuses anything but null and false: `what` says why."""

    def check(value: Any) -> Any:
        if value is not None and value is not False:
            raise PydanticCustomError("unavailable", "{what}", {"what": what})
        return value

    return AfterValidator(check)


Stored = Annotated[Any, unavailable("this server keeps no songs to take parts from")]
Signed = Annotated[Any, unavailable("this server does not sign files")]
Loop = Annotated[Any, unavailable("this server makes no loops")]
Style = Annotated[str, Field(max_length=200)]
ModelId = Annotated[
    str | None, Field(max_length=100, description="ElevenLabs' names of models all mean this server's.")
]
Styles = Annotated[list[Style], Field(max_length=50)]
SectionMs = Annotated[int, Field(ge=MIN_MS, le=MAX_SECTION_MS)]


@dataclass(frozen=True)
class Section:
    """A part of a song: its name, what it should and should not sound like, its length, and what is sung."""

    name: str
    styles: tuple[str, ...]
    avoided: tuple[str, ...]
    duration_ms: int
    lines: tuple[str, ...]


class SongSection(OptionModel):
    """A section of a SectionPlan."""

    section_name: str = Field(min_length=1, max_length=100)
    positive_local_styles: Styles
    negative_local_styles: Styles
    duration_ms: SectionMs
    lines: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=30)]
    source_from: Stored = None


class SectionPlan(OptionModel):
    """A composition plan of ElevenLabs' music_v1."""

    positive_global_styles: Styles
    negative_global_styles: Styles
    sections: Annotated[list[SongSection], Field(min_length=1, max_length=100)]

    def parts(self) -> list[Section]:
        """Its sections, each with the styles of the song before its own."""
        return [
            Section(
                item.section_name,
                _unique([*self.positive_global_styles, *item.positive_local_styles]),
                _unique([*self.negative_global_styles, *item.negative_local_styles]),
                item.duration_ms,
                tuple(item.lines),
            )
            for item in self.sections
        ]


class Chunk(OptionModel):
    """A chunk of a ChunkPlan. context_adherence is not used: every chunk goes on from the one before it."""

    text: str = Field(max_length=30 * 201 + 102)
    duration_ms: SectionMs
    positive_styles: Styles
    negative_styles: Styles | None = None
    context_adherence: Literal["low", "medium", "high"] | None = None
    conditioning_ref: Stored = None
    condition_strength: Stored = None


class ChunkPlan(OptionModel):
    """A composition plan of ElevenLabs' music_v2."""

    chunks: Annotated[list[Chunk], Field(min_length=1, max_length=100)]

    def parts(self) -> list[Section]:
        """Its chunks; one without styles keeps those of the one before it. Directions in braces are styles."""
        parts: list[Section] = []
        for item in self.chunks:
            name = SECTION_NAME.match(item.text)
            text = item.text[name.end() :] if name else item.text
            styles = item.positive_styles or (parts[-1].styles if parts else [])
            lines = (line.strip() for line in DIRECTION.sub("", text).splitlines())
            parts.append(
                Section(
                    name[1] if name else "",
                    _unique([*styles, *DIRECTION.findall(text)]),
                    _unique(item.negative_styles or []),
                    item.duration_ms,
                    tuple(line for line in lines if line),
                )
            )
        return parts


class MusicBody(OptionModel):
    """The body of POST /v1/music, /v1/music/detailed and /v1/music/stream."""

    prompt: Text | None = Field(default=None, description="What is played; or composition_plan.")
    composition_plan: dict[str, Any] | None = Field(
        default=None,
        description="Sections with their styles and lengths, as music_v1 (sections) or music_v2 (chunks) has.",
    )
    music_length_ms: Annotated[int, Field(ge=MIN_MS, le=MAX_MS)] | None = Field(
        default=None, description="Length in milliseconds. Default: one canvas of the model."
    )
    model_id: ModelId = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = Field(
        default=None, description="The same seed gives the same music. Default: drawn."
    )
    force_instrumental: bool | None = Field(default=None, description="No lyrics, where the model sings.")
    finetune_id: str | None = Field(
        default=None, min_length=1, max_length=100, description="The id of an adapter (GET /v1/adapters)."
    )
    respect_sections_durations: bool | None = Field(default=None, description="Changes nothing: lengths are kept.")
    store_for_inpainting: Stored = Field(default=None, description="Not there: no songs are kept.")
    sign_with_c2pa: Signed = Field(default=None, description="Not there: files are not signed.")
    with_timestamps: Annotated[Any, unavailable("this server does not time words")] = Field(
        default=None, description="Not there: words are not timed."
    )
    with_waveform_visual: Annotated[Any, unavailable("this server draws no waveforms")] = Field(
        default=None, description="Not there: no waveforms are drawn."
    )

    @model_validator(mode="after")
    def _one_text(self) -> Self:
        if (self.prompt is None) == (self.composition_plan is None):
            raise PydanticCustomError("exclusive", "expected prompt or composition_plan, one of them")
        if self.composition_plan is not None and (self.music_length_ms is not None or self.force_instrumental):
            raise PydanticCustomError("exclusive", "music_length_ms and force_instrumental need prompt")
        return self

    def options(self, parts: list[Section], *, takes_lyrics: bool) -> dict[str, Any]:
        """Options of the generation; `parts`: those of its plan, if it has one. Raises ProblemError 422."""
        options: dict[str, Any] = plan_options(parts, takes_lyrics=takes_lyrics) if parts else {"prompt": self.prompt}
        if self.music_length_ms is not None:
            options["seconds"] = self.music_length_ms / 1000
        if self.force_instrumental and takes_lyrics:
            options["lyrics"] = INSTRUMENTAL
        if self.finetune_id is not None:
            options["adapters"] = [{"id": self.finetune_id}]
        return options | {"seed": self.seed}


class SoundBody(OptionModel):
    """The body of POST /v1/sound-generation."""

    text: Text = Field(description="What is heard.")
    duration_seconds: Annotated[float, Field(ge=0.5, le=30)] | None = Field(
        default=None, description="Length in seconds. Default: one canvas of the model, 30 s at most."
    )
    prompt_influence: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="Guidance: 0.3 is the model's own, 0 is none."
    )
    loop: Loop = Field(default=None, description="Not there: no loops are made.")
    model_id: ModelId = None

    def options(self, default_s: float, guidance: float, taken: NumberRange = ANY_MODEL.guidance) -> dict[str, Any]:
        """Options of the generation. `default_s`: its length; `guidance`: the model's, for the default influence.

        taken: the guidance that the model takes; more influence has no more.
        """
        options = {"prompt": self.text, "seconds": self.duration_seconds or default_s}
        if self.prompt_influence is not None:
            options["guidance"] = taken.nearest(1 + (guidance - 1) * self.prompt_influence / DEFAULT_INFLUENCE)
        return options


def plan_options(parts: list[Section], *, takes_lyrics: bool) -> dict[str, Any]:
    """A plan as options: a prompt per section, each with a weight that is 1 in its time. Raises ProblemError 422."""
    total_ms = sum(part.duration_ms for part in parts)
    if total_ms > MAX_MS:
        raise plan_problem(f"lasts {total_ms} ms, at most {MAX_MS} ms are possible")
    return {
        "prompt": _prompts(parts, total_ms),
        "negative_prompt": ", ".join(_avoided(parts)),
        "seconds": total_ms / 1000,
        **_lyrics(parts, takes_lyrics),
    }


def plan_problem(what: str) -> ProblemError:
    """422 for a composition plan."""
    finding = Finding(pointer="/composition_plan", detail=what)
    return ProblemError(422, "invalid_request", f"composition_plan: {what}", errors=[finding])


def _prompts(parts: list[Section], total_ms: int) -> str | list[dict[str, Any]]:
    texts = [", ".join(part.styles) for part in parts]
    prompts = list(dict.fromkeys(texts))
    if len(prompts) == 1:
        return prompts[0]
    if len(prompts) > MAX_PROMPTS:
        raise plan_problem(f"has {len(prompts)} sections of different styles, at most {MAX_PROMPTS} are possible")
    num_values = min(MAX_CURVE_VALUES, CURVE_VALUES_PER_S * total_ms // 1000)
    ends_ms = np.cumsum([part.duration_ms for part in parts])[:-1]
    sections = np.searchsorted(ends_ms, np.linspace(0, total_ms, num_values), side="right")
    chosen = np.array([prompts.index(text) for text in texts])[sections]
    return [{"text": text, "weight": (chosen == i).astype(float).tolist()} for i, text in enumerate(prompts)]


def _avoided(parts: list[Section]) -> tuple[str, ...]:
    """What no part should sound like: a generation has one negative prompt, so no other part may ask for it."""
    avoided = _unique(style for part in parts for style in part.avoided)
    wanted = {style.casefold() for part in parts for style in part.styles}
    for style in avoided:
        if style.casefold() in wanted:
            raise plan_problem(
                f"avoids {style!r:.100} in one section and asks for it in another: it can be one of them"
            )
    return avoided


def _lyrics(parts: list[Section], takes_lyrics: bool) -> dict[str, str]:
    if not any(part.lines for part in parts):
        return {"lyrics": INSTRUMENTAL} if takes_lyrics else {}
    if not takes_lyrics:
        raise plan_problem("has lines to sing, but this model does not sing: leave them empty")
    return {"lyrics": "\n\n".join("\n".join([f"[{part.name}]"] * bool(part.name) + [*part.lines]) for part in parts)}


def _unique(styles: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for style in styles if (text := style.strip())))
