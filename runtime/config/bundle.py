"""bundle.toml: a model's graphs, tensor roles, latent layout, codec, text encoder and sampler defaults.

Shape letters: S slots, R rows, T frames, C latent channels, X context channels, L condition tokens, D condition width.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from runtime.base.errors import ConfigError, FileError
from runtime.base.untrusted import plain_utf8
from runtime.config.codec import CodecSpec, StructureSpec
from runtime.config.conditions import TextEncoderSpec, TextGraphSpec, TimbreSpec, placeholders, read_matrix
from runtime.config.decoder import AdapterSpec, ContextSpec, DecoderSpec, LatentSpec
from runtime.config.explain import TomlTable, read_toml, validated
from runtime.config.notes import NotesSpec, StemsSpec
from runtime.config.option_ranges import TEXT_OPTIONS, ControlsSpec, OptionRanges
from runtime.config.planner import PlannerSpec
from runtime.config.sampler import APG, NO_MOMENTUM, GuidanceSpec, SamplerSpec

logger = logging.getLogger(__name__)

BUNDLE_FILE = "bundle.toml"
SHIFT_REASON = "its times are those of a schedule of its own, [sampler] schedule"
# Options whose default the bundle says, or its tables' own defaults.
DEFAULTED = (
    "guidance", "guidance_mode", "momentum", "rescale", "shift", "solver", "steps", "cfg_interval_start",
    "cfg_interval_end",
)  # fmt: skip
# Table name in bundles of earlier releases -> its present name.
RENAMED_TABLES = {"conditioner": "text_encoder"}


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
        if self.sampler.solver == "jump" and self.decoder.inputs.time_end is None:
            raise ValueError('sampler.solver "jump" needs decoder.inputs.time_end: the time where a jump ends')
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
