"""ACE-Step v1.5 as a family: the options of its export and of its check. Needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from engine_build.export.family import ON_THE_HUB, PLACE, AllParts, Checked, Family, NoText, Seed, of_family, say
from runtime.base.errors import ConfigError

if TYPE_CHECKING:
    from engine_build.export.acestep.bundle_text import AceStepFacts
    from engine_build.export.acestep.sources import AceStepCheckpoint
    from engine_build.export.bundle_export import BundleExport, CheckpointSource
    from engine_build.export.check_report import CheckReport
    from engine_build.export.parity import CheckOptions


def export_acestep(
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar=PLACE,
            help="A folder as published: in diffusers' layout (transformer/, vae/, ...) or ACE-Step's own; "
            f"{ON_THE_HUB}.",
        ),
    ] = None,
    random: Annotated[
        bool, typer.Option("--random", help="Seeded random weights at ACE-Step v1.5's published sizes, for benchmarks.")
    ] = False,
    planner: Annotated[
        str | None,
        typer.Option(
            metavar=PLACE,
            help="A folder with the 5 Hz language model (acestep-5Hz-lm-0.6B), or its id; "
            "with --random: 0.6b, 1.7b or 4b.",
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar=PLACE,
            help="A smaller one with the same tokens, that drafts what the planner verifies; the plans stay.",
        ),
    ] = None,
    no_text: NoText = False,
    all_parts: AllParts = False,
    seed: Seed = 0,
    xl: Annotated[bool, typer.Option("--xl", help="With --random: the sizes of XL.")] = False,
    layers: Annotated[int | None, typer.Option(min=1, max=64, help="With --random: layers, of 24.")] = None,
    hidden: Annotated[int | None, typer.Option(min=8, help="With --random: hidden size, of 2048.")] = None,
    intermediate: Annotated[int | None, typer.Option(min=8, help="With --random: the MLP's size, of 6144.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="With --random: attention heads, of 16.")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="With --random: key and value heads, of 8.")] = None,
    head_dim: Annotated[int | None, typer.Option(min=8, help="With --random: a head's width, of 128.")] = None,
    condition: Annotated[int | None, typer.Option(min=8, help="With --random: condition width, of 2048.")] = None,
) -> BundleExport[AceStepFacts]:
    """Export ACE-Step v1.5: decoder, codec and, where the checkpoint has one, text encoder.

    Every graph is compared with its module. Afterwards: tickrt-build DEPLOYMENT, tickrt-bench DEPLOYMENT.
    """
    from engine_build.export.acestep.export import acestep_export
    from engine_build.export.acestep.sources import XL_CONFIG, RandomAceStep

    given = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "encoder_hidden_size": condition,
    }
    sizes = {name: value for name, value in given.items() if value is not None}
    if random == (checkpoint is not None):
        raise ConfigError("expected either --checkpoint FOLDER or --random", fix="--random --layers 2 for a quick look")
    if draft is not None and planner is None:
        raise ConfigError("--draft drafts for a planner", fix="--planner acestep-5Hz-lm-4B --draft acestep-5Hz-lm-0.6B")
    source: CheckpointSource
    if checkpoint is not None:
        if sizes or xl or all_parts:
            raise ConfigError("sizes belong to --random: a checkpoint has its own", fix="leave them out")
        source = acestep_checkpoint(checkpoint, planner, draft)
    else:
        source = RandomAceStep(
            seed=seed,
            planner=planner,
            draft=draft,
            transformer_changes={**(XL_CONFIG if xl else {}), **sizes},
            text_changes={} if all_parts else None,
            name="acestep-xl-random" if xl else "acestep-random",
        )
    return acestep_export(source, with_text=not no_text)


def check_acestep(options: CheckOptions, checkpoint: Checked) -> CheckReport:
    """Compare a checkpoint's bundle with diffusers' pipeline on this machine: latents, audio, times, and a WAV file.

    The report can be sent to us: it has figures, no paths, no names, no audio. Nothing leaves this machine by itself.
    """
    from engine_build.export.acestep.check import AceStepCheck

    return AceStepCheck(acestep_checkpoint(checkpoint), options, say).report()


def acestep_checkpoint(checkpoint: str, planner: str | None = None, draft: str | None = None) -> AceStepCheckpoint:
    """A checkpoint from a folder or the hub, with its language models. Raises ConfigError, FileError."""
    from engine_build.export.acestep.sources import AceStepCheckpoint
    from engine_build.export.hub import acestep_files, model_files, place_of
    from engine_build.export.stable_audio_3.layouts import stable_audio_parts

    place = place_of(checkpoint, acestep_files, say)
    models = [None if each is None else place_of(each, model_files, say) for each in (planner, draft)]
    planner_folder, draft_folder = (None if each is None else each.folder for each in models)
    origins = [place.origin, *(each.origin for each in models if each)]
    return of_family(
        lambda: AceStepCheckpoint(place.folder, planner_folder, draft_folder, origins),
        {"stable_audio_3": lambda: stable_audio_parts(place.folder)},
    )


FAMILY = Family(name="acestep", title="ACE-Step v1.5", export=export_acestep, check=check_acestep)
