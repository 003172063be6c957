"""tickrt-generate: a text in, an audio file out. Its flags are GenerationOptions, field by field."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, get_args

import numpy as np
import typer
from rich.console import Console

from runtime.audio.encoding import AudioWriter, write_audio
from runtime.audio.files import complete_file, format_of
from runtime.audio.formats import FORMATS, Latents, Pcm, latents_bytes
from runtime.config.deployment import Target, load_deployment
from runtime.errors import ConfigError, FileError, RequestError
from runtime.pipeline.building import open_built_pipeline
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.generation import LongGeneration, generate_audio, generate_latents
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.pipeline.text_encoder import read_condition
from runtime.progress import Meter, open_meter
from runtime.requests.options import DcwOptions, GenerationOptions, parse_options
from runtime.terminal import EXIT_STATUS_HELP, exit_on_error, print_line, sigterm_as_interrupt

STDOUT = Path("-")
TEXT_FLAGS = ("negative_prompt", "guidance_mode", "solver", "mode")
OWN_FLAGS = ("prompt", "repaint", "dcw")


@dataclass(frozen=True)
class Job:
    """What one call is to do. `values` are options, not yet checked."""

    config: Path
    out: Path
    format: str
    values: dict[str, Any]
    condition: Path | None
    source: Path | None
    target_source: Path | None
    target: Target | None
    quiet: bool


def tickrt_generate(
    config: Annotated[
        Path, typer.Argument(help="The deployment file, such as configs/demo.toml, or the name of a shipped one: demo.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write; its suffix says the format. - is standard output.")
    ],
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="What to hear. Several are blended; TEXT::WEIGHT, where WEIGHT is a number or a curve."),
    ] = None,
    condition: Annotated[
        Path | None,
        typer.Option(help="A .npy file with condition tokens, in place of --prompt; for models without text."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Audio (or latents) to make a cover of, to repaint or to go on from.")
    ] = None,
    target_source: Annotated[
        Path | None, typer.Option(help="Audio (or latents) that x0-strength and target-curve draw to; else the source.")
    ] = None,
    repaint: Annotated[
        list[str] | None, typer.Option(metavar="FROM:TO", help="Generate only these seconds of the source anew.")
    ] = None,
    options: Annotated[
        Path | None, typer.Option(help="A JSON file with options, as the server takes them; flags come on top.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(metavar="|".join(FORMATS), help="Instead of what the suffix says.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="|".join(get_args(Target)), help="Instead of the deployment's target."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
    **flags: Any,
) -> None:
    """Generate audio (or latents) from a text.

    Suffixes: .wav .flac .ogg .opus .pcm .safetensors (latents). An existing file is replaced, once the new one is
    whole. CURVE is a number, or numbers over time: 1,2,1 or @FILE with a JSON list; they are stretched over the
    generation.
    """
    with exit_on_error("interrupted; nothing was written"), sigterm_as_interrupt():
        values = _file_values(options) | _flag_values(prompt or [], repaint or [], flags)
        inputs = (condition, source, target_source)
        _generate(Job(config, out, format_of(out, format), values, *inputs, _target(target), quiet))


def _flags() -> dict[str, inspect.Parameter]:
    """One text flag per option that has no flag of its own; the options' model says what it takes."""
    schema = GenerationOptions.model_json_schema()["properties"]
    flags = {name: (entry["description"], _metavar(entry)) for name, entry in schema.items() if name not in OWN_FLAGS}
    for name, entry in DcwOptions.model_json_schema()["properties"].items():
        flags[f"dcw_{name}"] = (entry["description"], _metavar(entry))
    return {name: _flag(name, text, metavar) for name, (text, metavar) in flags.items()}


def _flag(name: str, text: str, metavar: str) -> inspect.Parameter:
    option = typer.Option(f"--{name.replace('_', '-')}", help=text, metavar=metavar, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )


def _metavar(entry: dict[str, Any]) -> str:
    branches = entry.get("anyOf", [entry])
    if "enum" in branches[0]:
        return "|".join(branches[0]["enum"])
    kinds = [branch["type"] for branch in branches if branch["type"] != "null"]
    return {"integer": "INTEGER", "number": "NUMBER", "string": "TEXT"}[kinds[0]] if len(kinds) == 1 else "CURVE"


def _make_app() -> typer.Typer:
    signature = inspect.signature(tickrt_generate, eval_str=True)
    named = {name: item for name, item in signature.parameters.items() if name != "flags"}
    parameters = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in named.values()]
    tickrt_generate.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*parameters, *_flags().values()]
    )
    made = typer.Typer(add_completion=False, rich_markup_mode=None)
    made.command(epilog=EXIT_STATUS_HELP)(tickrt_generate)
    return made


app = _make_app()


def main() -> None:
    """The command's entry."""
    app(prog_name="tickrt-generate")


def _generate(job: Job) -> None:
    console = Console(stderr=True)
    condition = None if job.condition is None else read_condition(job.condition)
    options = parse_options(job.values if condition is None else {"prompt": "", **job.values})
    with _open(job) as pipeline, _output(job.out) as file:
        if pipeline.codec is None and job.format != "latents":
            raise ConfigError(f"bundle {pipeline.bundle.name!r} makes latents, not audio", fix="--out NAME.safetensors")
        source, target = (_read(pipeline, path) for path in (job.source, job.target_source))
        generation = LongGeneration(pipeline, options, GenerationInputs(condition, source, target))
        with closing(open_meter(generation.num_segments or 1, console, quiet=job.quiet)) as meter:
            _write(job, pipeline, generation, meter, file)
    if not job.quiet:
        print_line(_summary(job, generation, meter), console)


def _open(job: Job) -> Pipeline:
    """The job's pipeline. Engines of a deployment that is given by its name are built where they are missing."""
    deployment = load_deployment(job.config)
    if job.config.is_file():
        return open_pipeline(deployment, target=job.target)
    return open_built_pipeline(deployment, target=job.target, quiet=job.quiet)


def _write(job: Job, pipeline: Pipeline, generation: LongGeneration, meter: Meter, file: BinaryIO) -> None:
    if job.format == "latents":
        latents = _joined(pipeline, generate_latents(pipeline, generation, meter.event), meter)
        file.write(latents_bytes(latents, _metadata(job, pipeline, generation)))
        return
    assert pipeline.codec is not None
    rate_hz = pipeline.codec.sample_rate_hz
    writer = AudioWriter(job.format, rate_hz, pipeline.codec.channels, total_samples=generation.total_samples)
    write_audio(file, writer, _metered(generate_audio(pipeline, generation, meter.event), rate_hz, meter))


def _metered(chunks: Iterator[Pcm], sample_rate_hz: int, meter: Meter) -> Iterator[Pcm]:
    for chunk in chunks:
        yield chunk
        meter.audio(len(chunk) / sample_rate_hz)


def _joined(pipeline: Pipeline, pieces: Iterator[Latents], meter: Meter) -> Latents:
    parts = []
    for latents in pieces:
        parts.append(latents)
        meter.audio(len(latents) / pipeline.bundle.latents.frame_rate_hz)
    return np.concatenate(parts)


def _metadata(job: Job, pipeline: Pipeline, generation: LongGeneration) -> dict[str, str]:
    return {
        "bundle": pipeline.bundle.name,
        "bundle_version": pipeline.bundle.version,
        "frame_rate_hz": str(pipeline.bundle.latents.frame_rate_hz),
        "options": json.dumps(job.values | {"seed": generation.seed}),
    }


def _summary(job: Job, generation: LongGeneration, meter: Meter) -> str:
    return (
        f"{job.out}: {meter.audio_s:.2f} s, seed {generation.seed}, made in {meter.elapsed_s:.2f} s"
        f" ({meter.speed:.1f} x real time)"
    )


def _read(pipeline: Pipeline, path: Path | None) -> Latents | None:
    """A source's latents. Raises RequestError, FileError."""
    if path is None:
        return None
    if not path.exists() or path.is_dir():
        raise FileError(f"{path} cannot be read: {'it is a folder' if path.is_dir() else 'there is no such file'}")
    return pipeline.read_source(path)


def _target(name: str | None) -> Target | None:
    if name is not None and name not in get_args(Target):
        raise RequestError(f"expected one of {', '.join(get_args(Target))}, got {name!r}", field="target")
    return name  # type: ignore[return-value]


class _Pipe:
    """Standard output as bytes; what was written there cannot be changed. Raises FileError when the reader has gone."""

    def write(self, data: bytes) -> int:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(sys.stdout.fileno(), left) :]
        except BrokenPipeError:
            raise FileError("the reader of standard output has closed it") from None
        return len(data)

    def seekable(self) -> bool:
        return False


@contextmanager
def _output(path: Path) -> Iterator[BinaryIO]:
    """Standard output for -, else a file that is complete or absent. Raises FileError."""
    if path == STDOUT:
        yield _Pipe()  # type: ignore[misc]
        return
    with complete_file(path) as file:
        yield file


def _file_values(path: Path | None) -> dict[str, Any]:
    """Options from a JSON file. Raises RequestError, FileError."""
    values = {} if path is None else _json_file(path)
    if not isinstance(values, dict):
        raise RequestError(f"{path} holds {type(values).__name__}, expected an object", field="options")
    return values


def _flag_values(prompts: list[str], repaints: list[str], flags: dict[str, str | None]) -> dict[str, Any]:
    """The options that flags say, as plain values. Raises RequestError, FileError."""
    values: dict[str, Any] = {}
    dcw: dict[str, Any] = {}
    if prompts:
        values["prompt"] = _prompt(prompts)
    if repaints:
        values["repaint"] = [_span(text) for text in repaints]
    for name, text in flags.items():
        if text is not None:
            place, key = (dcw, name.removeprefix("dcw_")) if name.startswith("dcw_") else (values, name)
            place[key] = text if key in TEXT_FLAGS else _value(text, name)
    return values | ({"dcw": dcw} if dcw else {})


def _prompt(texts: list[str]) -> str | list[dict[str, Any]]:
    prompts = [_weighted(text) for text in texts]
    return texts[0] if len(prompts) == 1 and "weight" not in prompts[0] else prompts


def _weighted(text: str) -> dict[str, Any]:
    """TEXT::WEIGHT; where nothing like a number is behind the last ::, all of it is the text."""
    head, mark, tail = text.rpartition("::")
    if not mark:
        return {"text": text}
    try:
        return {"text": head, "weight": _value(tail, "prompt")}
    except RequestError:
        return {"text": text}


def _span(text: str) -> dict[str, Any]:
    start, _, end = text.partition(":")
    return {"start_s": _seconds(start), "end_s": _seconds(end)}


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RequestError(
            f"expected FROM:TO in seconds, got {text!r}", field="repaint", fix="--repaint 4:7.5"
        ) from None


def _value(text: str, name: str) -> Any:
    """A number, numbers between commas, JSON, or @FILE with JSON. Raises RequestError, FileError."""
    if text.startswith("@"):
        return _json_file(Path(text[1:]))
    for candidate in (text, f"[{text}]"):
        with suppress(ValueError):
            return json.loads(candidate)
    raise RequestError(f"expected a number, 1,2,1 or @FILE, got {text!r:.60}", field=name)


def _json_file(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RequestError(f"{path} is not JSON: {error}", field="options") from error


if __name__ == "__main__":
    main()
