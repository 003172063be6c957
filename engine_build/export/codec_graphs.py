"""The graphs of a codec, latents -> audio and, where it has an encoder, audio -> latents, of any autoencoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import remove_weight_norm

from engine_build.export.bundle_export import Facts, checked
from engine_build.export.bundle_tables import DECODE, ENCODE, canvas_frames
from engine_build.export.cleanup import name_dimensions
from engine_build.export.torch_export import (
    OPSET,
    export_graph,
    free,
    graph_error,
    module_outputs,
    open_without_copies,
    release,
)
from runtime.base.errors import BuildError

MAX_BATCH: Final = 64
EXAMPLE_FRAMES: Final = 9
CHECKED_FRAMES: Final = 3
PROBE_FRAMES: Final = 33
MAX_PROBE_FRAMES: Final = 600


@dataclass(frozen=True)
class CodecLayout:
    """The fixed numbers of a codec."""

    sample_rate_hz: int
    channels: int
    hop_samples: int
    latent_channels: int

    @property
    def frame_rate_hz(self) -> float:
        """Latent frames per second."""
        return self.sample_rate_hz / self.hop_samples


def without_weight_norm(vae: nn.Module) -> nn.Module:
    """The VAE with its normalised weights multiplied out, in place."""
    for module in vae.modules():
        if isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
            remove_weight_norm(module)
    return vae


def codec_facts(
    layout: CodecLayout,
    decode: nn.Module,
    encode: nn.Module | None,
    folder: Path,
    channels: int,
    *,
    margin_frames: int | None = None,
    align_frames: int = 1,
    opset: int = OPSET,
) -> Facts:
    """Export a codec into a bundle's folder and compare its graphs with the modules, whose weights are freed.

    decode: latents `[B, T, C]` -> audio `[B, A, T * hop]`; encode: back, None where there is no encoder. channels: of
    the decoder's latents. margin_frames: how far a frame of latents reaches; None: as far as a NaN does, which is not
    for attention. Returns the facts of bundle.toml. Raises ModuleError, and BuildError where a graph differs.
    """
    if layout.latent_channels != channels:
        raise BuildError(
            f"the transformer takes latents of {channels} channels, the vae has {layout.latent_channels}",
            fix="export a transformer and a vae that belong together",
        )
    random = torch.Generator().manual_seed(0)
    latents = {"latents": torch.randn(1, CHECKED_FRAMES, layout.latent_channels, generator=random)}
    audio = {"audio": torch.rand(1, layout.channels, CHECKED_FRAMES * layout.hop_samples, generator=random) - 0.5}
    halves = [(DECODE, decode, latents, export_decode, decode_margin)]
    if encode is not None:
        halves.append((ENCODE, encode, audio, export_encode, encode_margin))
    expected = [module_outputs(module, [example]) for _, module, example, *_ in halves]
    for name, module, _, export, _ in halves:
        export(module, layout, folder / name, opset)
    for _, module, *_ in halves:
        release(module)
    margins: list[int] = []
    for (name, _, example, _, margin), wanted in zip(halves, expected, strict=True):
        checked(name, graph_error(folder / name, [example], wanted))
        margins.append(margin(folder / name, layout) if margin_frames is None else margin_frames)
    return {
        "sample_rate_hz": layout.sample_rate_hz,
        "audio_channels": layout.channels,
        "hop_samples": layout.hop_samples,
        "frame_rate_hz": layout.frame_rate_hz,
        "decode_margin_frames": margins[0],
        "encode_margin_frames": margins[1] if encode is not None else None,
        "align_frames": align_frames,
    }


def export_decode(module: nn.Module, layout: CodecLayout, file: Path, opset: int = OPSET) -> None:
    """Write latents `[B, T, C]` -> audio `[B, A, T * hop]`; B and T are free."""
    export_graph(
        module,
        file,
        (torch.zeros(2, EXAMPLE_FRAMES, layout.latent_channels),),
        inputs=["latents"],
        outputs=["audio"],
        dynamic_shapes=({0: free("batch", MAX_BATCH), 1: free("frames")},),
        dimensions={f"{layout.hop_samples}*frames": "samples"},
        opset=opset,
    )


def export_encode(module: nn.Module, layout: CodecLayout, file: Path, opset: int = OPSET) -> None:
    """Write audio `[B, A, T * hop]` -> latents `[B, T, C]`; B and T are free."""
    blocks = layout.hop_samples * free("blocks")
    export_graph(
        module,
        file,
        (torch.zeros(2, layout.channels, EXAMPLE_FRAMES * layout.hop_samples),),
        inputs=["audio"],
        outputs=["latents"],
        dynamic_shapes=({0: free("batch", MAX_BATCH), 2: blocks},),
        dimensions={f"{layout.hop_samples}*blocks": "samples"},
        opset=opset,
    )
    model = onnx.load(file, load_external_data=False)
    name_dimensions(model, {model.graph.output[0].type.tensor_type.shape.dim[1].dim_param: "frames"})
    file.write_bytes(model.SerializeToString())


def decode_margin(file: Path, layout: CodecLayout) -> int:
    """Frames on both sides of a window that its audio depends on, read off the exported graph. Raises BuildError."""
    session = open_without_copies(file)

    def touched(frames: int) -> NDArray[np.bool_]:
        latents = np.zeros((1, frames, layout.latent_channels), np.float32)
        latents[:, frames // 2] = np.nan
        audio = session.run(None, {"latents": latents})[0]
        return np.asarray(np.isnan(audio).any(axis=(0, 1)).reshape(frames, -1).any(axis=1))

    return _reach(touched)


def encode_margin(file: Path, layout: CodecLayout) -> int:
    """Frames of audio on both sides of a window that its latents depend on. Raises BuildError."""
    session = open_without_copies(file)

    def touched(frames: int) -> NDArray[np.bool_]:
        audio = np.zeros((1, layout.channels, frames, layout.hop_samples), np.float32)
        audio[:, :, frames // 2] = np.nan
        latents = session.run(None, {"audio": audio.reshape(1, layout.channels, -1)})[0]
        return np.asarray(np.isnan(latents).any(axis=(0, 2)))

    return _reach(touched)


def _reach(touched: Callable[[int], NDArray[np.bool_]]) -> int:
    """The receptive field in frames: the distance to which a NaN in the middle frame propagates."""
    frames = PROBE_FRAMES
    while frames <= MAX_PROBE_FRAMES:
        found = np.flatnonzero(touched(frames))
        reach = int(np.abs(found - frames // 2).max())
        if reach < frames // 2:
            return reach
        frames = 2 * frames + 1
    raise BuildError(f"the codec's receptive field is more than {MAX_PROBE_FRAMES // 2} frames: windows would not pay")


def encode_silence(
    file: Path, layout: CodecLayout, margin_frames: int, frames: int, period_frames: int = 1
) -> NDArray[np.float32]:
    """Latents `[frames, C]` of digital silence from its first sample on: after the margin they repeat."""
    kept = margin_frames + period_frames
    audio = np.zeros((1, layout.channels, (kept + margin_frames) * layout.hop_samples), np.float32)
    latents = open_without_copies(file).run(None, {"audio": audio})[0][0, :kept]
    return np.concatenate((latents, np.tile(latents[margin_frames:], (-(-frames // period_frames), 1))))[:frames]


def canvas_silence(folder: Path, facts: Facts) -> NDArray[np.float32]:
    """Latents `[canvas frames, C]` of digital silence, by the encoder of a bundle with these facts."""
    layout = CodecLayout(facts["sample_rate_hz"], facts["audio_channels"], facts["hop_samples"], facts["channels"])
    frames = canvas_frames(facts["canvas_s"], facts["frame_rate_hz"], facts["frame_multiple"])
    return encode_silence(folder / ENCODE, layout, facts["encode_margin_frames"], frames, facts["align_frames"])
