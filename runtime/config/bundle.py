"""bundle.toml: a model's graphs, tensor roles, latent layout, codec, text encoder and sampler defaults.

Shape letters: S slots, R rows, T frames, C latent channels, X context channels, L condition tokens, D condition width.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from runtime.base.errors import ConfigError, FileError
from runtime.base.input_files import read_matrix
from runtime.base.untrusted import plain_utf8
from runtime.config.adapter_spec import AdapterSpec
from runtime.config.codec import CodecSpec
from runtime.config.conditions import TextEncoderSpec, TextGraphSpec, TimbreSpec, placeholders
from runtime.config.controls import TEXT_OPTIONS, ControlsSpec
from runtime.config.explain import FileName, TomlTable, read_toml, validated
from runtime.config.guidance import APG, NO_MOMENTUM, GuidanceSpec
from runtime.config.notes import NotesSpec
from runtime.config.option_ranges import OptionRanges
from runtime.config.planner import PlannerSpec
from runtime.config.stems import StemsSpec
from runtime.config.structure import StructureSpec

logger = logging.getLogger(__name__)

BUNDLE_FILE = "bundle.toml"
SHIFT_REASON = "its times are those of a schedule of its own, [sampler] schedule"
# Options whose default the bundle says, or its tables' own defaults.
DEFAULTED = ("guidance", "momentum", "rescale", "shift", "solver", "steps", "cfg_interval_start", "cfg_interval_end")
# The order in which torch's noise of a seed is drawn: one frame's channels after another's, or the other way round.
NoiseLayout = Literal["time_channels", "channels_time"]
# Table name in bundles of earlier releases -> its present name.
RENAMED_TABLES = {"conditioner": "text_encoder"}


class LatentSpec(TomlTable):
    """Layout of the latents `[T, C]`: C channels at `frame_rate_hz`, T a multiple of `frame_multiple`.

    most_unused: generations shorter than a canvas have lengths so close that less than this share of one's frames is
    cut off at its end, for models whose music depends on its length. Without it, they are quarters of the canvas.
    """

    channels: int = Field(ge=1)
    frame_rate_hz: float = Field(gt=0)
    frame_multiple: int = Field(default=1, ge=1)
    canvas_frames: int = Field(ge=1)
    most_unused: float | None = Field(default=None, ge=0.02, lt=1)

    def round_up(self, frames: int) -> int:
        """Smallest valid number of frames that is not less than `frames`."""
        return -(-frames // self.frame_multiple) * self.frame_multiple


class DecoderInputs(TomlTable):
    """Role -> tensor name. latents `[R,T,C]`, time `[R]`, condition `[R,L,D]`, its mask `[R,L]`, context `[R,T,X]`.

    The condition may also be one vector per row, `[R,D]`.
    """

    latents: str
    time: str
    condition: str | None = None
    condition_mask: str | None = None
    context: str | None = None

    @model_validator(mode="after")
    def _check_mask(self) -> Self:
        if self.condition is None and self.condition_mask is not None:
            raise ValueError("condition_mask belongs to a condition: name that too")
        return self

    def letters(self, condition_rank: int = 3) -> dict[str, str]:
        """Tensor name -> its shape letters, where the condition has `condition_rank` dimensions."""
        roles = {
            self.latents: "RTC",
            self.time: "R",
            self.condition: "RD" if condition_rank == 2 else "RLD",
            self.condition_mask: "RL",
            self.context: "RTX",
        }
        return {name: letters for name, letters in roles.items() if name is not None}


class DecoderOutputs(TomlTable):
    """Role -> tensor name. velocity `[R,T,C]`."""

    velocity: str


class DecoderSpec(TomlTable):
    """The denoiser's graph and its tensor roles.

    null_condition: a .npy file with the null condition's tokens, float32 `[L, D]`, for models that learn them; without
    it the text encoder encodes the empty text. mask_counts: the mask says how often a token counts, so that equal
    tokens are one.
    """

    graph: FileName
    null_condition: FileName | None = None
    mask_counts: bool = False
    inputs: DecoderInputs
    outputs: DecoderOutputs

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if self.mask_counts and self.inputs.condition_mask is None:
            raise ValueError("mask_counts is said of a condition_mask: name that too")
        return self


class ContextSpec(TomlTable):
    """Layout of the context `[T, X]`: C channels of known latents (silence where unknown), C of mask (1 = generate).

    silence: one frame `[C]`, or the name of a .npy file with a sequence of frames, float32 `[N, C]`, that starts at the
    canvas's first frame and repeats where the canvas is longer.
    """

    layout: Literal["known+mask"] = "known+mask"
    silence: tuple[float, ...] | FileName
    overlap_frames: int = Field(default=64, ge=1)


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


class SamplerSpec(TomlTable):
    """Defaults of a generation. `live_steps` holds in live sessions, where a change should be heard soon.

    blend_power: several prompts are blended by the mean of this power of what each predicts, around silence; 1 is the
    mean of velocities, in which what one prompt plays alone is as weak as its share. blend_energy_below: in steps at
    times below it, power 2 takes its place. schedule: what the times of any number of steps are made by, in place of
    the linear schedule and its shift. schedules: number of steps -> the time of each, in place of what schedule or
    shift make of that number: where a generation gives no shift and starts from noise. noise_layout: the order in which
    torch's noise of a seed is drawn. guidance_reason: why the model takes no guidance but 1, such as "it is distilled:
    guidance is built in".
    """

    steps: int = Field(default=8, ge=1)
    live_steps: int = Field(default_factory=lambda data: data["steps"], ge=1)
    shift: float = Field(default=1.0, gt=0)
    schedule: LogSnrSchedule | None = None
    schedules: Mapping[int, tuple[float, ...]] = {}
    solver: Literal["ode", "sde", "ab2"] = "ode"
    noise_layout: NoiseLayout = "time_channels"
    guidance: float = 1.0
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
    def _check_blend(self) -> Self:
        if self.blend_energy_below and self.blend_power <= 2:
            raise ValueError(f"blend_energy_below is for blend_power 4 or 8, not {self.blend_power}: leave it out")
        return self

    @model_validator(mode="after")
    def _check_schedules(self) -> Self:
        for steps, times in self.schedules.items():
            falls = all(later < earlier for earlier, later in pairwise((*times, 0.0)))
            if len(times) != steps or not falls or times[0] != 1.0:
                raise ValueError(f"schedules.{steps}: expected {steps} times, from 1 down to above 0")
        return self


class Bundle(TomlTable):
    """One model: bundle.toml, and the folder that contains it."""

    folder: Path
    schema_version: Literal[1]
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    version: str = "0"
    family: Literal["flow"]
    license: str = ""
    description: str = ""
    latents: LatentSpec
    decoder: DecoderSpec
    context: ContextSpec | None = None
    codec: CodecSpec | None = None
    text_encoder: TextEncoderSpec | None = None
    timbre: TimbreSpec | None = None
    adapters: AdapterSpec | None = None
    structure: StructureSpec | None = None
    notes: NotesSpec | None = None
    stems: StemsSpec | None = None
    planner: PlannerSpec | None = None
    sampler: SamplerSpec = SamplerSpec()
    guidance: GuidanceSpec = APG
    options: OptionRanges = OptionRanges()
    controls: ControlsSpec = ControlsSpec()
    training: Mapping[str, Any] = {}
    evaluation: Mapping[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _fix_options(cls, table: Any) -> Any:
        """What sampler and guidance leave no choice of is an option of which one number is taken."""
        sampler, guidance, options = tables = [table.get(name, {}) for name in ("sampler", "guidance", "options")]
        if not all(isinstance(each, dict) for each in tables):
            return table
        choices = (
            ("guidance", 1, sampler.get("guidance_reason"), "sampler"),
            ("shift", 1, SHIFT_REASON if "schedule" in sampler else "", "sampler"),
            ("momentum", 0, NO_MOMENTUM if guidance.get("rule") == "plain" else "", "guidance"),
        )
        fixed = dict[str, dict[str, Any]]()
        for name, number, reason, source in choices:
            if reason and name in options:
                raise ValueError(f"options.{name} is left out: [{source}] says which one is taken")
            if reason:
                fixed[name] = {"min": number, "max": number, "reason": reason}
        return {**table, "options": {**options, **fixed}}

    @model_validator(mode="after")
    def _check_condition(self) -> Self:
        if self.decoder.inputs.condition is not None:
            return self
        for key, value in (
            ("text_encoder", self.text_encoder),
            ("decoder.null_condition", self.decoder.null_condition),
        ):
            if value is not None:
                raise ValueError(f"{key} needs decoder.inputs.condition: the decoder takes no condition")
        if self.sampler.guidance != 1.0:
            raise ValueError("sampler.guidance is not 1, but the decoder takes no condition: there is nothing to guide")
        return self

    @model_validator(mode="after")
    def _check_timbre(self) -> Self:
        if self.timbre is not None and self.text_encoder is None:
            raise ValueError("[timbre] needs [text_encoder]: its tokens are packed with those of the text")
        return self

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        meaning = None if self.text_encoder is None else self.text_encoder.meaning
        named = {layer for part in (() if meaning is None else meaning.parts) for layer in part.names}
        known = set[str]() if self.notes is None else {layer.name for layer in self.notes.layers}
        if unknown := named - known:
            raise ValueError(f"text_encoder.meaning.parts name the layer {min(unknown)!r}, [notes] has no such layer")
        return self

    @model_validator(mode="after")
    def _check_roles(self) -> Self:
        if (self.context is None) != (self.decoder.inputs.context is None):
            raise ValueError("[context] and decoder.inputs.context go together: the bundle has one without the other")
        if self.codec is not None and self.codec.sample_rate_hz != self.codec.hop_samples * self.latents.frame_rate_hz:
            raise ValueError(
                f"codec.sample_rate_hz is {self.codec.sample_rate_hz}, expected hop_samples {self.codec.hop_samples} "
                f"times latents.frame_rate_hz {self.latents.frame_rate_hz:g}"
            )
        for name, half in ({} if self.codec is None else self.codec.halves).items():
            if self.latents.frame_multiple % half.align_frames:
                raise ValueError(
                    f"latents.frame_multiple is {self.latents.frame_multiple}, expected a multiple of "
                    f"codec.{name}.align_frames {half.align_frames}: generations are whole groups of the codec's"
                )
        if self.structure is not None and self.context is None:
            raise ValueError("[structure] needs [context]: that is where its hints go")
        if self.planner is not None and self.structure is None:
            raise ValueError("[planner] needs [structure]: that makes hints of its codes")
        if self._tells_openings and self.notes is None:
            raise ValueError("planner.plan.openings needs [notes]: that tells their tonic")
        if self.stems is not None and self.stems.tracks and (self.codec is None or not self._extracts_tracks):
            raise ValueError("stems.tracks need [codec], [context], and an instruction for extract that has {track}")
        if self.stems is not None and not self.stems.tracks and (self.notes is None or self.codec is None):
            raise ValueError("[stems] needs [codec], and [notes]: that names the layers")
        if self.notes is not None and self.notes.last_channel >= self.latents.channels:
            raise ValueError(
                f"[notes] has channel {self.notes.last_channel}, latents.channels is {self.latents.channels}"
            )
        silence = () if self.context is None else self.context.silence
        if self.context is not None and not isinstance(silence, str) and len(silence) != self.latents.channels:
            raise ValueError(f"context.silence has {len(silence)} values, latents.channels is {self.latents.channels}")
        return self

    @model_validator(mode="after")
    def _check_defaults(self) -> Self:
        # What is the default was one before [guidance] could be given, also where [options] says another.
        tables = {"sampler": self.sampler} | ({} if self.guidance == APG else {"guidance": self.guidance})
        for key, value in [(f"{table}.{name}", value) for table, spec in tables.items() for name, value in spec]:
            option = key.partition(".")[2].removeprefix("live_")
            taken = self.options.narrowed.get(option)
            if taken is not None and taken.usual_part.outside(value) is not None:
                raise ValueError(f"{key} is {value:g}, expected {taken.usual_part}, as [options.{option}] says")
        return self

    @model_validator(mode="after")
    def _check_controls(self) -> Self:
        known = self.text_encoder.placeholders if self.text_encoder else frozenset[str]()
        for name, spec in self.controls.given.items():
            if spec.words and self.text_encoder is None:
                raise ValueError(f"controls.{name}.words need [text_encoder]")
            if spec.option in TEXT_OPTIONS and spec.option not in known:
                raise ValueError(f"controls.{name}.option is {spec.option}, the template has no {{{spec.option}}}")
            taken = self.options.narrowed.get(str(spec.option))
            if taken is not None and taken.reason:
                raise ValueError(f"controls.{name}.option is {spec.option}, of which there is one: {taken.reason}")
            if taken is not None and spec.range is not None and taken.outside(list(spec.range)) is not None:
                raise ValueError(f"controls.{name}.range is outside of [options.{spec.option}], which takes {taken}")
        return self

    def default_of(self, option: str) -> Any:
        """What an option is where none is given; None where neither [sampler] nor [guidance] says."""
        return getattr(self.sampler, option, getattr(self.guidance, option, None))

    def graph_path(self, graph: str) -> Path:
        """Path of one of the bundle's graphs."""
        return self.folder / graph

    @property
    def context_channels(self) -> int:
        """X: 2C for "known+mask", 0 where the decoder takes no context."""
        return 0 if self.context is None else 2 * self.latents.channels

    @property
    def condition_graphs(self) -> dict[str, TextGraphSpec | TimbreSpec]:
        """The graphs that make condition tokens, by the name of their engine."""
        text = self.text_encoder
        found = {"text_encoder": text, "lyric_encoder": text and text.lyrics, "timbre_encoder": self.timbre}
        return {name: spec for name, spec in found.items() if spec is not None}

    @property
    def canvas_s(self) -> float:
        """Length of a canvas in seconds."""
        return self.latents.canvas_frames / self.latents.frame_rate_hz

    def settings_json(self) -> bytes:
        """All of bundle.toml that its sound depends on as JSON, and hashes of the texts that it names."""
        others = {"folder", "license", "description", "stems", "training", "evaluation"}
        is_shaped = self.notes is not None and self.notes.has_envelopes
        others |= set() if self._tells_openings or is_shaped else {"notes"}
        others |= {"guidance"} if self.guidance == APG else set()
        names = [spec.tokenizer for spec in (self.text_encoder, self.planner) if spec is not None and spec.tokenizer]
        if self.text_encoder is not None and self.text_encoder.meaning is not None:
            names.append(self.text_encoder.meaning.names)
        files = [hashlib.sha256((self.folder / name).read_bytes()).hexdigest() for name in names]
        return f"{self.model_dump_json(exclude=others)} {' '.join(files)}".encode()

    @property
    def _extracts_tracks(self) -> bool:
        """Whether a generation can be asked for a track of its source."""
        texts = () if self.text_encoder is None else self.text_encoder.instructions.get("extract", ())
        return self.context is not None and any("track" in placeholders(text) for text in texts)

    @property
    def _tells_openings(self) -> bool:
        """Whether notes decide which of a plan's openings is played."""
        return self.planner is not None and self.planner.plan is not None and self.planner.plan.openings > 1

    def silence(self, frames: int) -> NDArray[np.float32]:
        """Silent latents `[frames, C]` from the start of a canvas; zeros where the bundle names none.

        Raises ConfigError where its file cannot be read.
        """
        channels = self.latents.channels
        if self.context is None:
            return np.zeros((frames, channels), np.float32)
        if not isinstance(self.context.silence, str):
            return np.tile(np.asarray(self.context.silence, np.float32), (frames, 1))
        known = _read_array(self.folder / self.context.silence, channels)
        return known[np.arange(frames) % len(known)]

    def null_condition(self) -> NDArray[np.float32] | None:
        """The null condition's tokens `[L, D]`, read-only; None where the bundle has no file of them.

        Raises ConfigError where it cannot be read.
        """
        name = self.decoder.null_condition
        return None if name is None else _read_array(self.folder / name, None)

    def meaning_names(self) -> Mapping[str, tuple[str, ...]]:
        """By kind the names that a prompt may mean, in the order of the graph's output; {} where it has no such output.

        Raises ConfigError where their file cannot be read.
        """
        meaning = None if self.text_encoder is None else self.text_encoder.meaning
        return {} if meaning is None else _read_names(self.folder / meaning.names, meaning.drawn)


def load_bundle(folder: Path) -> Bundle:
    """Read and check `folder/bundle.toml` and the arrays that it names.

    Raises ConfigError with the file, the key and what was expected.
    """
    path = folder / BUNDLE_FILE
    if not path.is_file():
        raise _no_bundle(folder)
    table = read_toml(path)
    for old, name in RENAMED_TABLES.items():
        if old in table and name not in table:
            table[name] = table.pop(old)
            _warn_renamed(path.resolve(), old, name)
    if "deployment" in table:
        raise ConfigError(f"{path} is a deployment, expected a bundle", fix="name the folder that its `bundle` names")
    if "folder" in table:
        raise ConfigError(f"{path}: folder: is not a known name", fix="leave it out")
    bundle = validated(Bundle, {**table, "folder": folder}, str(path))
    bundle.silence(1)
    bundle.null_condition()
    bundle.meaning_names()
    return bundle


@cache
def _warn_renamed(path: Path, old: str, name: str) -> None:
    """Log a renamed table, once per bundle file."""
    logger.warning("%s: [%s] is now called [%s]; rename it in the file", path, old, name)


def _no_bundle(folder: Path) -> ConfigError:
    if folder.is_dir():
        return ConfigError(f"{folder} is not a bundle: it has no {BUNDLE_FILE}", fix="name the bundle's folder")
    if folder.is_file():
        return ConfigError(f"{folder} is a file, expected a bundle's folder", fix=f"name the folder with {BUNDLE_FILE}")
    return ConfigError(
        f"there is no bundle at {folder}",
        fix=f"name another one, or make it: python -m engine_build.export acestep --checkpoint DIR --out {folder}",
    )


@lru_cache(maxsize=16)
def _read_array(path: Path, columns: int | None) -> NDArray[np.float32]:
    """float32 `[N, columns]` of a .npy file, read-only; any number of columns where that is None."""
    try:
        array = read_matrix(path)
    except FileError as error:
        raise ConfigError(error.what, fix="export the bundle again") from error
    wanted = f"float32 [N, {'D' if columns is None else columns}], finite"
    if not array.size or columns not in (None, array.shape[1]) or not np.isfinite(array).all():
        raise ConfigError(f"{path} does not hold {wanted}", fix="export the bundle again")
    array.flags.writeable = False
    return array


@lru_cache(maxsize=16)
def _read_names(path: Path, drawn: str) -> Mapping[str, tuple[str, ...]]:
    """Lists of names by kind. drawn: a kind that has to be there, or ""."""
    try:
        kinds = json.loads(plain_utf8(path.read_bytes()), object_pairs_hook=list)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", fix="export the bundle again") from error
    fix = f"correct it, or text_encoder.meaning in {BUNDLE_FILE}"
    if not kinds or not isinstance(kinds, list) or not all(_is_kind(item) for item in kinds):
        raise ConfigError(f'{path} does not hold names by kind, such as {{"genre": ["rock", "jazz"]}}', fix=fix)
    found = {kind: tuple(names) for kind, names in kinds}
    if len(found) < len(kinds):
        raise ConfigError(f"{path} has a kind twice: {', '.join(kind for kind, _ in kinds)}", fix=fix)
    if drawn and drawn not in found:
        raise ConfigError(f"{path} has no kind {drawn!r} to draw from, it has {', '.join(found)}", fix=fix)
    return found


def _is_kind(item: object) -> bool:
    """Whether this is a kind, and its names."""
    if not isinstance(item, tuple) or not item[0].strip() or not isinstance(item[1], list):
        return False
    return bool(item[1]) and all(isinstance(name, str) and name.strip() for name in item[1])
