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
    from engine_build.export.stable_audio_3.bundle_text import StableAudioFacts
    from engine_build.export.stable_audio_3.sources import StableAudioCheckpoint, StableAudioSource

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


def export_stable_audio(
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
) -> BundleExport[StableAudioFacts]:
    """Export Stable Audio 3: decoder, codec and, where the checkpoint has one, text encoder.

    The weights are under the Stability AI Community License, the text encoder is under the Gemma terms: read them.
    """
    from engine_build.export.stable_audio_3.export import stable_audio_export
    from engine_build.export.stable_audio_3.sources import RandomStableAudio

    source: StableAudioSource
    if random is not None and checkpoint is None:
        if text_encoder is not None:
            raise ConfigError("--text-encoder belongs to --checkpoint", fix="leave it out")
        source = RandomStableAudio.of_layers(random.value, seed, layers, {} if all_parts else None)
    elif random is not None or checkpoint is None:
        raise ConfigError(
            "expected either --checkpoint FOLDER or --random SIZE", fix="--random small --layers 2 for a quick look"
        )
    elif layers is not None or all_parts:
        raise ConfigError("sizes belong to --random: a checkpoint has its own", fix="leave them out")
    else:
        source = stable_audio_checkpoint(checkpoint, text_encoder)
    return stable_audio_export(source, with_text=not no_text)


def check_stable_audio(
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
    from engine_build.export.stable_audio_3.check import StableAudioCheck

    source = stable_audio_checkpoint(checkpoint, text_encoder)
    return StableAudioCheck(source, replace(options, audio=audio), say).report()


def stable_audio_checkpoint(checkpoint: str, text_encoder: str | None = None) -> StableAudioCheckpoint:
    """A checkpoint from a folder or the hub, with its text encoder. Raises ConfigError, FileError."""
    from engine_build.export.acestep.layouts import acestep_parts
    from engine_build.export.hub import model_files, place_of, stable_audio_3_files
    from engine_build.export.stable_audio_3.sources import StableAudioCheckpoint

    place = place_of(checkpoint, stable_audio_3_files, say)
    text = None if text_encoder is None else place_of(text_encoder, model_files, say)
    folder, origins = (None, [place.origin]) if text is None else (text.folder, [place.origin, text.origin])
    return of_family(
        lambda: StableAudioCheckpoint(place.folder, folder, origins), {"acestep": lambda: acestep_parts(place.folder)}
    )


FAMILY = Family(
    name="stable-audio-3",
    title="Stable Audio 3",
    export=export_stable_audio,
    check=check_stable_audio,
    canvas_s=120.0,
    most_canvas_s=380.0,
)
