"""tickrt-generate: audio or latents from a text, written to a file or to standard output."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, get_args

import numpy as np
import typer
from rich.console import Console
from typer.core import TyperOption

from runtime.audio.encoding import AudioWriter, write_audio
from runtime.audio.formats import AUDIO_FORMATS, FORMATS, complete_file, format_of, latents_bytes
from runtime.audio.metadata import GenerationMetadata, latents_tags, read_metadata
from runtime.audio.playback import AudioPlayer, open_player
from runtime.base.errors import ConfigError, FileError, RequestError
from runtime.base.files import check_file, losses
from runtime.commands.command_line import Command, CommandLine, Config, Version
from runtime.commands.generate_options import (
    NOTES,
    SOURCE,
    TEXT,
    description,
    file_values,
    flag_values,
    merged,
    named_as_flags,
    option_flags,
    range_text,
)
from runtime.commands.progress import OPENING, ProgressMeter, open_progress, waiting
from runtime.commands.terminal import Terminal, exit_on_error, print_line
from runtime.config.bundle import Bundle
from runtime.config.codec import Latents, Pcm
from runtime.config.deployment import Deployment, ModelIdentity, Target, load_deployment
from runtime.config.option_ranges import ANY_MODEL
from runtime.music.midi_file import midi_bytes, read_notes
from runtime.pipeline.building import open_built_pipeline
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.generation import LongGeneration, generate_audio, generate_latents
from runtime.pipeline.inputs import Given
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.pipeline.stem_files import StemFiles, save_files
from runtime.pipeline.text_encoder import read_condition
from runtime.requests.options import parse_options
from runtime.requests.prompt_words import PromptMeaning
from runtime.requests.validation import note_spec

STDOUT = Path("-")
INPUT_FLAGS = {"target": "target_source"}


@dataclass(frozen=True)
class GenerateCall:
    """The arguments of one call. `values` are options that are not validated yet."""

    config: Path
    out: Path | None
    format: str
    play: bool
    values: dict[str, Any]
    condition: Path | None
    source: Path | None
    target_source: Path | None
    timbre: Path | None
    structure: Path | None
    notes: Path | None
    target: Target | None
    like: GenerationMetadata | None
    has_metadata: bool
    quantize: bool
    stems: Path | None
    quiet: bool


def tickrt_generate(
    config: Config,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write; its suffix sets the format. - is standard output."),
    ] = None,
    play: Annotated[
        bool, typer.Option("--play", help="Play the audio while it is generated; --out may be left out.")
    ] = False,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help=f"{description('prompt')} Repeatable: TEXT or TEXT::CURVE, the curve being the weight.",
            rich_help_panel=TEXT,
        ),
    ] = None,
    condition: Annotated[
        Path | None,
        typer.Option(
            help="A .npy file with condition tokens, in place of --prompt; for models without text.",
            rich_help_panel=TEXT,
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="Audio or latents to cover, to repaint or to continue.", rich_help_panel=SOURCE),
    ] = None,
    target_source: Annotated[
        Path | None,
        typer.Option(
            help="Audio or latents for x0-strength and target-curve. Default: the source.", rich_help_panel=SOURCE
        ),
    ] = None,
    timbre: Annotated[
        Path | None,
        typer.Option(help="Audio or latents whose timbre the generation takes.", rich_help_panel=TEXT),
    ] = None,
    structure: Annotated[
        Path | None,
        typer.Option(
            help="Audio or latents whose melody and rhythm a cover keeps. Default: the source.", rich_help_panel=SOURCE
        ),
    ] = None,
    notes: Annotated[
        Path | None,
        typer.Option(help=f"A .mid file, or JSON. {description('notes')}", rich_help_panel=NOTES),
    ] = None,
    repaint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FROM:TO", help=f"{description('repaint')} In seconds; repeatable.", rich_help_panel=SOURCE
        ),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            "--adapter",
            "--adapters",
            metavar="ID[:STRENGTH]",
            help=f"{description('adapters')} Repeatable.",
        ),
    ] = None,
    options: Annotated[
        Path | None, typer.Option(help="A JSON file with options, as in an HTTP request; flags override it.")
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(help="A file that TickRT wrote, to generate it again; flags change what they name."),
    ] = None,
    metadata: Annotated[
        bool, typer.Option(help="Write the options, the prompt among them, and the seed into the file.")
    ] = True,
    stems: Annotated[
        Path | None,
        typer.Option(
            help="A folder for the mix and its layers, FLAC of 24 bits, and its notes; --out may be left out."
        ),
    ] = None,
    quantize: Annotated[bool, typer.Option("--quantize", help="Notes of .mid lie on the beat of the plan.")] = False,
    format: Annotated[str | None, typer.Option(metavar="|".join(FORMATS), help="Overrides the suffix.")] = None,
    target: Annotated[
        Target | None, typer.Option(metavar="|".join(get_args(Target)), help="Overrides the deployment's target.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    version: Version = False,
    **flags: Any,
) -> None:
    """Generate audio, notes or latents from a text.

    Suffixes: .wav .flac .ogg .opus .mp3 .pcm .mid (notes) .safetensors (latents). An existing file is
    replaced once the new one is complete. CURVE is a number, or several over time: 1,2,1 or @FILE with a JSON list, and
    what lies between them.
    """
    with exit_on_error("interrupted; nothing was written"), named_as_flags():
        made = None if like is None else read_metadata(like)
        values = merged({} if made is None else made.options, {} if options is None else file_values(options))
        values = merged(values, flag_values(prompt or [], repaint or [], flags, adapter or []))
        format = _checked_format(out, format, play, stems)
        if quantize and format != "mid":
            raise RequestError(f"has no effect on {format}", field="quantize", fix="--out NAME.mid")
        files = condition, source, target_source, timbre, structure, notes
        _run(GenerateCall(config, out, format, play, values, *files, target, made, metadata, quantize, stems, quiet))


class _GenerateCommand(Command):
    """Its --help has the bundle's defaults where the arguments name a deployment."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--help" in args:
            bundle = _bundle_of(args)
            for option in self.params:
                if bundle is not None and isinstance(option, TyperOption) and option.help and option.name:
                    option.help = _with_facts(option.help, option.name, bundle)
        return list(super().parse_args(ctx, args))


def _bundle_of(args: Iterable[str]) -> Bundle | None:
    """That of the first argument that is a deployment."""
    for argument in args:
        with suppress(ConfigError):
            return load_deployment(Path(argument)).loaded_bundle
    return None


def _with_facts(text: str, option: str, bundle: Bundle) -> str:
    """An option's help with the bundle's default and range."""
    default = bundle.default_of(option)
    if isinstance(default, str | int | float):
        shown = default if isinstance(default, str) else f"{default:g}"
        text = text.replace("the model's", f"{shown}, that of {bundle.name}")
    if option in bundle.options.narrowed:
        text = text.replace(range_text(*getattr(ANY_MODEL, option).ends), f"{getattr(bundle.options, option)}")
    return text


def _make_app() -> typer.Typer:
    """The command with the options' flags in place of `**flags`."""
    signature = inspect.signature(tickrt_generate, eval_str=True)
    named = [item for name, item in signature.parameters.items() if name != "flags"]
    parameters = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in named]
    tickrt_generate.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*parameters, *option_flags()]
    )
    made = CommandLine()
    made.command(cls=_GenerateCommand)(tickrt_generate)
    return made


app = _make_app()


def main() -> None:
    """Entry point of tickrt-generate."""
    app(prog_name="tickrt-generate")


def _checked_format(out: Path | None, format: str | None, play: bool, stems: Path | None) -> str:
    """The format to write; wav where nothing is written. Raises ConfigError, RequestError."""
    if out is None and not play and stems is None:
        raise ConfigError("there is nowhere to send the audio", fix="--out NAME.wav, or --play")
    found = format_of(out, format) if out is not None else "wav"
    if play and found not in AUDIO_FORMATS:
        raise ConfigError(f"{found} cannot be played", fix="--out NAME.wav, or leave --play out")
    return found


def _run(call: GenerateCall) -> None:
    console = Terminal(stderr=True)
    deployment = load_deployment(call.config)
    condition = None if call.condition is None else read_condition(call.condition)
    bundle = deployment.loaded_bundle
    needs_text = condition is None and bundle.text_encoder is not None
    with losses() as lost:
        values = (
            call.values if call.notes is None else {**call.values, "notes": read_notes(call.notes, note_spec(bundle))}
        )
    options = parse_options(values if needs_text else {"prompt": "", **values}, bundle.options)
    with _open(call, deployment) as pipeline, ExitStack() as stack:
        if pipeline.codec is None and call.format in AUDIO_FORMATS:
            raise ConfigError(f"bundle {pipeline.bundle.name!r} makes latents, not audio", fix="--out NAME.safetensors")
        files = {
            "source": call.source,
            "target": call.target_source,
            "structure": call.structure,
            "timbre": call.timbre,
        }
        with losses() as lost_audio:
            given = {name: _given(path, pipeline, name) for name, path in files.items() if path is not None}
            inputs = pipeline.inputs.read(given, GenerationInputs(condition))
        generation = LongGeneration(pipeline, options, inputs)
        if call.stems is not None:
            generation.check_stems()
        if call.format == "mid":
            generation.check_score(quantize=call.quantize)
        if call.like is not None:
            _compare(call.like, generation.metadata(), console, quiet=call.quiet)
        words = None if condition is not None else pipeline.prompts.words(options)
        if words and not words.is_complete and not call.quiet:
            print_line(str(words), console)
        for line in (
            () if call.quiet else (*(f"note: {text}" for text in (*lost, *lost_audio)), *_played(generation.meanings))
        ):
            print_line(line, console)
        player = stack.enter_context(closing(_open_player(pipeline, generation))) if call.play else None
        progress = open_progress(generation.num_segments, console, quiet=call.quiet)
        with closing(progress), _output(call.out) as file:
            latents = _write(call, pipeline, generation, progress, file, player)
        if call.stems is not None:
            if generation.tracks and not call.quiet:
                print_line(f"extracting {', '.join(generation.tracks)}", console)
            save_files(call.stems, StemFiles(generation, latents, metadata=call.has_metadata).finish())
        if not call.quiet:
            text = f"{progress.audio_s:.2f} s, seed {generation.seed}, {progress.timing}"
            print_line(f"{call.out or call.stems or 'audio'}: {text}", console)
        if player is not None:
            with exit_on_error("interrupted while playing"):
                player.finish()


def _played(meanings: Sequence[PromptMeaning]) -> Iterator[str]:
    """A line for each prompt of which the model tells what it plays."""
    for meaning in meanings:
        if said := str(meaning):
            yield f"{meaning.text} plays: {said}" if len(meanings) > 1 else f"plays: {said}"


def _open_player(pipeline: Pipeline, generation: LongGeneration) -> AudioPlayer:
    assert pipeline.codec is not None
    return open_player(pipeline.codec.sample_rate_hz, pipeline.codec.channels, generation.total_samples)


def _open(call: GenerateCall, deployment: Deployment) -> Pipeline:
    """The call's pipeline. Missing engines are built for a deployment that is given by name, not for a file."""
    is_file = call.config.is_file()
    # On a terminal a build shows its own progress.
    with nullcontext() if call.quiet or (not is_file and sys.stderr.isatty()) else waiting(OPENING):
        if is_file:
            return open_pipeline(deployment, target=call.target)
        return open_built_pipeline(deployment, target=call.target, quiet=call.quiet)


def _given(path: Path, pipeline: Pipeline, field: str) -> Given:
    """Raises FileError."""
    check_file(path)
    return pipeline.inputs.file(path, field)


def _write(
    call: GenerateCall,
    pipeline: Pipeline,
    generation: LongGeneration,
    progress: ProgressMeter,
    file: BinaryIO,
    player: AudioPlayer | None,
) -> Latents:
    """Write the file; returns all latents."""
    codec = pipeline.codec
    if generation.plan is not None and player is None:
        generation.plan.finish()  # the tag has its codes
    tag = generation.metadata().to_tag(call.format) if call.has_metadata else ""
    if call.format not in AUDIO_FORMATS or codec is None:
        parts = generate_latents(pipeline, generation, progress.on_event)
        frame_rate_hz = pipeline.bundle.latents.frame_rate_hz
        latents = np.concatenate(list(_counted(parts, frame_rate_hz, progress)))
        file.write(_file_of(call, latents, tag, generation, frame_rate_hz))
        return latents
    made: list[Latents] = []
    chunks = generate_audio(pipeline, generation, progress.on_event, on_latents=made.append)
    rate_hz, samples = codec.sample_rate_hz, generation.total_samples
    writer = AudioWriter(call.format, rate_hz, codec.channels, total_samples=samples, metadata=tag)
    write_audio(file, writer, _counted(chunks if player is None else player.tee(chunks), rate_hz, progress))
    return np.concatenate(made)


def _file_of(call: GenerateCall, latents: Latents, tag: str, generation: LongGeneration, frame_rate_hz: float) -> bytes:
    """The bytes of a file that is no audio. Raises ConfigError, RequestError."""
    if call.format == "mid":
        return midi_bytes(generation.score(latents, quantize=call.quantize), tag)
    return latents_bytes(latents, latents_tags(frame_rate_hz, tag))


def _counted(parts: Iterator[Pcm], rate_hz: float, progress: ProgressMeter) -> Iterator[Pcm]:
    """Pass on frames or samples, and add their length to the progress once they are used."""
    for part in parts:
        yield part
        progress.add_audio(len(part) / rate_hz)


def _compare(made: GenerationMetadata, now: GenerationMetadata, console: Console, *, quiet: bool) -> None:
    """Say why the result will differ from the file of --like. Raises RequestError where inputs or options miss."""
    missing = [*(name for name in made.inputs if name not in now.inputs), *(set(made.omitted) - set(now.options))]
    if missing:
        flags = " ".join(f"--{INPUT_FLAGS.get(name, name).replace('_', '-')}" for name in missing)
        raise RequestError(
            f"the file was made with {', '.join(missing)}, which it does not contain", fix=f"add {flags}"
        )
    notes = [
        f"another {name} than the file was made with" for name in made.inputs if made.inputs[name] != now.inputs[name]
    ]
    if (made.model, made.model_version) != (now.model, now.model_version):
        notes.append(
            f"the file was made with {made.model} {made.model_version}, this is {now.model} {now.model_version}"
        )
    elif difference := _identity(now).difference(_identity(made)):
        notes.append(f"the file was made by {difference}")
    for note in notes if not quiet else ():
        print_line(f"note: {note}: the result will differ", console)


def _identity(metadata: GenerationMetadata) -> ModelIdentity:
    return ModelIdentity(metadata.bundle_sha256, metadata.precision)


class _StandardOutput:
    """Standard output as a binary file that cannot seek. Raises FileError when its reader has closed it."""

    def write(self, data: bytes) -> int:
        remaining = memoryview(data)
        try:
            while remaining:
                remaining = remaining[os.write(sys.stdout.fileno(), remaining) :]
        except BrokenPipeError:
            raise FileError("the reader of standard output has closed it") from None
        return len(data)

    def seekable(self) -> bool:
        return False


@contextmanager
def _output(path: Path | None) -> Iterator[BinaryIO]:
    """Standard output for -, nothing for None, else a file that is complete or absent. Raises FileError."""
    if path is None:
        with open(os.devnull, "wb") as nothing:
            yield nothing
    elif path == STDOUT:
        yield _StandardOutput()  # type: ignore[misc]
    else:
        with complete_file(path) as file:
            yield file


if __name__ == "__main__":
    main()
