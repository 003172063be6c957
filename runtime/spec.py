"""What a bundle is: one model's graphs, tensor roles, latent layout, codec, conditioner and sampler defaults.

Shape letters: S slots, R rows, T frames, C latent channels, X context channels, L condition tokens, D condition width.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from runtime.errors import ConfigError

BUNDLE_SCHEMA_VERSION = 1
BUNDLE_FILE = "bundle.toml"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LatentSpec(_Section):
    """Layout of the latents `[T, C]`: C channels at `frame_rate_hz`, T a multiple of `frame_multiple`."""

    channels: int = Field(ge=1)
    frame_rate_hz: float = Field(gt=0)
    frame_multiple: int = Field(default=1, ge=1)
    canvas_frames: int = Field(ge=1)

    def round_up(self, frames: int) -> int:
        """Smallest valid number of frames that is not less than `frames`."""
        return -(-frames // self.frame_multiple) * self.frame_multiple


class DecoderInputs(_Section):
    """Role -> tensor name. latents `[R,T,C]`, time `[R]`, condition `[R,L,D]`, its mask `[R,L]`, context `[R,T,X]`."""

    latents: str
    time: str
    condition: str
    condition_mask: str | None = None
    context: str | None = None


class DecoderOutputs(_Section):
    """Role -> tensor name. velocity `[R,T,C]`."""

    velocity: str


class DecoderSpec(_Section):
    """The denoiser's graph and its tensor roles."""

    graph: str
    inputs: DecoderInputs
    outputs: DecoderOutputs


class ContextSpec(_Section):
    """What the context `[T, X]` holds: C channels of known latents (else silence), C of mask (1 = generate)."""

    layout: Literal["known+mask"] = "known+mask"
    silence: tuple[float, ...]
    overlap_frames: int = Field(default=64, ge=1)


class CodecDecodeTensors(_Section):
    """Role -> tensor name. latents `[B,T,C]`, start_frame `[B]` int64 absolute frame of the first frame."""

    latents: str
    start_frame: str | None = None


class CodecEncodeTensors(_Section):
    """Role -> tensor name. audio `[B,channels,N*hop]` float32."""

    audio: str


class CodecDecodeOutputs(_Section):
    """Role -> tensor name. audio `[B,channels,T*hop]` float32."""

    audio: str


class CodecEncodeOutputs(_Section):
    """Role -> tensor name. latents `[B,N,C]` float32."""

    latents: str


class CodecDecodeSpec(_Section):
    """Latents -> audio. A window with `margin_frames` on both sides, trimmed, equals the full decode."""

    graph: str
    margin_frames: int = Field(default=0, ge=0)
    inputs: CodecDecodeTensors
    outputs: CodecDecodeOutputs


class CodecEncodeSpec(_Section):
    """Audio -> latents."""

    graph: str
    margin_frames: int = Field(default=0, ge=0)
    inputs: CodecEncodeTensors
    outputs: CodecEncodeOutputs


class CodecSpec(_Section):
    """Audio <-> latents: `hop_samples` samples per frame and channel."""

    sample_rate_hz: int = Field(ge=1)
    channels: int = Field(ge=1, le=8)
    hop_samples: int = Field(ge=1)
    decode: CodecDecodeSpec
    encode: CodecEncodeSpec | None = None


class ConditionerInputs(_Section):
    """Role -> tensor name. tokens `[B,L]` int64, mask `[B,L]` int64 (1 = token)."""

    tokens: str
    mask: str


class ConditionerOutputs(_Section):
    """Role -> tensor name. condition `[B,L',D]` float32, mask `[B,L']` float32 (1 = keep)."""

    condition: str
    mask: str


class ConditionerSpec(_Section):
    """Text -> condition tokens. The empty text is the null condition."""

    graph: str
    tokenizer: str
    max_tokens: int = Field(ge=1)
    inputs: ConditionerInputs
    outputs: ConditionerOutputs


class SamplerSpec(_Section):
    """Defaults of a generation."""

    steps: int = Field(default=8, ge=1)
    shift: float = Field(default=1.0, gt=0)
    guidance: float = 1.0
    denoise: float = Field(default=1.0, ge=0, le=1)


class Bundle(_Section):
    """One model. `folder` is where its files lie; everything else is bundle.toml."""

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
    conditioner: ConditionerSpec | None = None
    sampler: SamplerSpec = SamplerSpec()
    training: dict[str, Any] = {}
    evaluation: dict[str, Any] = {}

    @model_validator(mode="after")
    def _roles_agree(self) -> Self:
        if (self.context is None) != (self.decoder.inputs.context is None):
            raise ValueError("[context] and decoder.inputs.context go together: the bundle has one without the other")
        if self.codec is not None and self.codec.sample_rate_hz != self.codec.hop_samples * self.latents.frame_rate_hz:
            raise ValueError(
                f"codec.sample_rate_hz is {self.codec.sample_rate_hz}, expected hop_samples {self.codec.hop_samples} "
                f"times latents.frame_rate_hz {self.latents.frame_rate_hz:g}"
            )
        if self.context is not None and len(self.context.silence) != self.latents.channels:
            raise ValueError(
                f"context.silence has {len(self.context.silence)} values, latents.channels is {self.latents.channels}"
            )
        return self

    def graph_path(self, graph: str) -> Path:
        """Path of one of the bundle's graphs."""
        return self.folder / graph

    @property
    def context_channels(self) -> int:
        """X: 2C for "known+mask", 0 where the decoder takes no context."""
        return 0 if self.context is None else 2 * self.latents.channels

    def silence(self) -> NDArray[np.float32]:
        """The latent frame `[C]` that means silence; zeros where the bundle names none."""
        if self.context is None:
            return np.zeros(self.latents.channels, np.float32)
        return np.asarray(self.context.silence, np.float32)


def load_bundle(folder: Path) -> Bundle:
    """Read and check `folder/bundle.toml`. Raises ConfigError with the file, the key and what was expected."""
    path = folder / BUNDLE_FILE
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{folder} is not a bundle: it has no {BUNDLE_FILE}", fix="name the bundle's folder"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    try:
        return Bundle(folder=folder, **table)
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error)}") from error
    except TypeError as error:
        raise ConfigError(f"{path}: {error}") from error


def explain(error: ValidationError) -> str:
    """pydantic's findings, one line each: key, what is wrong, what was found."""
    lines = []
    for item in error.errors(include_url=False):
        where = ".".join(str(part) for part in item["loc"]) or "(whole file)"
        found = "" if item["type"] in ("missing", "value_error") else f" (found {item['input']!r:.80})"
        lines.append(f"{where}: {item['msg']}{found}")
    return "; ".join(lines)
