"""ACE-Step v1.5 as a family: the options of its export and of its check. Needs no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine_build.export.family import ON_THE_HUB, PLACE, AllParts, Checked, Family, NoText, Seed, of_family, say
from runtime.base.errors import ConfigError

if TYPE_CHECKING:
    from engine_build.export.acestep.bundle_text import BundleFacts
    from engine_build.export.acestep.sources import Checkpoint
    from engine_build.export.bundle_export import BundleExport, CheckpointSource
    from engine_build.export.check_report import CheckReport
    from engine_build.export.parity import CheckOptions


def export(
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
) -> BundleExport[BundleFacts]:
    """Export ACE-Step v1.5: decoder, codec and, where the checkpoint has one, text encoder.

    Every graph is compared with its module. Afterwards: tickrt-build DEPLOYMENT, tickrt-bench DEPLOYMENT.
    """
    from engine_build.export.acestep.export import bundle_export

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
    source = _source(checkpoint, random, sizes, planner, draft, xl, seed, all_parts=all_parts)
    return bundle_export(source, with_text=not no_text)


def check(options: CheckOptions, checkpoint: Checked) -> CheckReport:
    """Compare a checkpoint's bundle with diffusers' pipeline on this machine: latents, audio, times, and a WAV file.

    The report can be sent to us: it has figures, no paths, no names, no audio. Nothing leaves this machine by itself.
    """
    from engine_build.export.acestep.check import check_checkpoint

    return check_checkpoint(checkpoint_of(checkpoint), options, say)


def checkpoint_of(checkpoint: str, planner: str | None = None, draft: str | None = None) -> Checkpoint:
    """A checkpoint from a folder or the hub, with its language models. Raises ConfigError, FileError."""
    from engine_build.export.acestep.sources import Checkpoint
    from engine_build.export.hub import acestep_files, model_files, place_of
    from engine_build.export.stable_audio_3 import layouts as stable_audio_3

    place = place_of(checkpoint, acestep_files, say)
    models = [None if each is None else place_of(each, model_files, say) for each in (planner, draft)]
    planner_folder, draft_folder = (None if each is None else each.folder for each in models)
    origins = [place.origin, *(each.origin for each in models if each)]
    return of_family(
        lambda: Checkpoint(place.folder, planner_folder, draft_folder, origins),
        {"stable_audio_3": lambda: stable_audio_3.checkpoint_of(place.folder)},
    )


def _source(
    checkpoint: str | None,
    random: bool,
    sizes: dict[str, Any],
    planner: str | None,
    draft: str | None,
    xl: bool,
    seed: int,
    *,
    all_parts: bool,
) -> CheckpointSource:
    from engine_build.export.acestep.sources import XL_CONFIG, RandomWeights

    if random == (checkpoint is not None):
        raise ConfigError("expected either --checkpoint FOLDER or --random", fix="--random --layers 2 for a quick look")
    if draft is not None and planner is None:
        raise ConfigError("--draft drafts for a planner", fix="--planner acestep-5Hz-lm-4B --draft acestep-5Hz-lm-0.6B")
    if checkpoint is not None:
        if sizes or xl or all_parts:
            raise ConfigError("sizes belong to --random: a checkpoint has its own", fix="leave them out")
        return checkpoint_of(checkpoint, planner, draft)
    name = "acestep-xl-random" if xl else "acestep-random"
    sizes = {**(XL_CONFIG if xl else {}), **sizes}
    source = RandomWeights(seed, planner, draft, transformer_changes=sizes, name=name)
    return replace(source, text_changes={}) if all_parts else source


FAMILY = Family(name="acestep", title="ACE-Step v1.5", export=export, check=check)
