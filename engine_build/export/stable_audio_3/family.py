"""Stable Audio 3 as a family: the options of its export and of its check. Needs no torch."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine_build.export.family import ON_THE_HUB, PLACE, AllParts, Checked, Family, NoText, Seed, of_family, say
from runtime.base.errors import ConfigError

if TYPE_CHECKING:
    from engine_build.export.bundle_export import BundleExport
    from engine_build.export.check_report import CheckReport
    from engine_build.export.parity import CheckOptions
    from engine_build.export.stable_audio_3.bundle_text import BundleFacts
    from engine_build.export.stable_audio_3.sources import Checkpoint, StableAudioSource

TextEncoderFolder = Annotated[
    str | None,
    typer.Option(
        "--text-encoder",
        metavar=PLACE,
        help="T5Gemma's folder (t5gemma-b-b-ul2), or its id, where it is not in the checkpoint's.",
    ),
]


class RandomSize(StrEnum):
    """The published sizes."""

    SMALL = "small"
    MEDIUM = "medium"


def export(
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar=PLACE,
            help="A folder as published (model_config.json, model.safetensors), or in diffusers' layout; "
            f"{ON_THE_HUB}.",
        ),
    ] = None,
    random: Annotated[
        RandomSize | None,
        typer.Option(help="Seeded random weights at the published sizes of small or medium, for benchmarks."),
    ] = None,
    text_encoder: TextEncoderFolder = None,
    no_text: NoText = False,
    all_parts: AllParts = False,
    seed: Seed = 0,
    layers: Annotated[
        int | None, typer.Option(min=1, max=64, help="With --random: layers of the decoder and of the codec's halves.")
    ] = None,
) -> BundleExport[BundleFacts]:
    """Export Stable Audio 3: decoder, codec and, where the checkpoint has one, text encoder.

    The weights are under the Stability AI Community License, the text encoder is under the Gemma terms: read them.
    """
    from engine_build.export.stable_audio_3.export import bundle_export

    source = _source(checkpoint, random, text_encoder, seed, layers, all_parts=all_parts)
    return bundle_export(source, with_text=not no_text)


def check(
    options: CheckOptions,
    checkpoint: Checked,
    text_encoder: TextEncoderFolder = None,
    audio: Annotated[
        Path | None,
        typer.Option(help="A file of music, for checks 1, 5 and 7; it stays here. Default: a clip of ours."),
    ] = None,
) -> CheckReport:
    """Answer by a checkpoint's weights where published implementations contradict each other, and compare its bundle.

    The report can be sent to us: it has figures, no paths, no names, no audio. Nothing leaves this machine by itself.
    """
    from engine_build.export.stable_audio_3.check import check_checkpoint

    return check_checkpoint(checkpoint_of(checkpoint, text_encoder), replace(options, audio=audio), say)


def checkpoint_of(checkpoint: str, text_encoder: str | None) -> Checkpoint:
    """A checkpoint from a folder or the hub, with its text encoder. Raises ConfigError, FileError."""
    from engine_build.export.acestep.layouts import parts_of
    from engine_build.export.hub import model_files, place_of, stable_audio_3_files
    from engine_build.export.stable_audio_3.sources import Checkpoint

    place = place_of(checkpoint, stable_audio_3_files, say)
    text = None if text_encoder is None else place_of(text_encoder, model_files, say)
    folder, origins = (None, [place.origin]) if text is None else (text.folder, [place.origin, text.origin])
    return of_family(lambda: Checkpoint(place.folder, folder, origins), {"acestep": lambda: parts_of(place.folder)})


def _source(
    checkpoint: str | None,
    random: RandomSize | None,
    text_encoder: str | None,
    seed: int,
    layers: int | None,
    *,
    all_parts: bool,
) -> StableAudioSource:
    from engine_build.export.stable_audio_3.sources import RandomWeights

    if random is not None and checkpoint is None:
        if text_encoder is not None:
            raise ConfigError("--text-encoder belongs to --checkpoint", fix="leave it out")
        return RandomWeights.of_layers(random.value, seed, layers, {} if all_parts else None)
    if random is not None or checkpoint is None:
        raise ConfigError(
            "expected either --checkpoint FOLDER or --random SIZE", fix="--random small --layers 2 for a quick look"
        )
    if layers is not None or all_parts:
        raise ConfigError("sizes belong to --random: a checkpoint has its own", fix="leave them out")
    return checkpoint_of(checkpoint, text_encoder)


FAMILY = Family(
    name="stable-audio-3", title="Stable Audio 3", export=export, check=check, canvas_s=120.0, most_canvas_s=380.0
)
