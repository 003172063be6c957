"""Parameters of ACE-Step's /release_task as bodies of our generations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from runtime.audio.formats import format_name
from runtime.base.untrusted import quoted
from runtime.config.bundle import Bundle
from runtime.config.conditions import Task
from runtime.config.option_ranges import ControlsSpec
from runtime.config.words import READERS, is_instrumental
from runtime.requests.option_types import TextOptions
from runtime.requests.options import COVER_DENOISE, options_error
from runtime.requests.request import MAX_SEED
from runtime.requests.seeds import draw_seed
from runtime.requests.tasks import TRACK_OPTIONS, known_tasks
from runtime.requests.validation import plan_text_options, untaken_options
from server.protocols.acestep.fields import THEIR_NAMES, Fields, refuse_field

# What this server cannot do, with the value that asks for nothing.
NEUTRAL: Mapping[str, bool | float | str] = {
    "use_adg": False, "guidance_variant": "apg_classic", "sampler_mode": "euler", "velocity_norm_threshold": 0.0,
    "velocity_ema_factor": 0.0, "latent_shift": 0.0, "latent_rescale": 1.0, "analysis_only": False,
    "full_analysis_only": False, "extract_codes_only": False,
}  # fmt: skip
# What needs ACE-Step's language model: music is made without; thinking is done where the model has a planner.
PLANNED = ("thinking", "use_format", "sample_mode")
FORMATS = ("mp3", "wav", "flac", "ogg")
# The API's defaults, which its clients always send: they stand for the model's own.
DEFAULT_GUIDANCE, DEFAULT_SHIFT, DEFAULT_BATCH, MAX_BATCH = 7.0, 3.0, 2, 8
# Its instructions for tasks; a model has its own.
DEFAULT_INSTRUCTIONS = (
    "Fill the audio semantic mask based on the given conditions:",
    "Repaint the mask area based on the given conditions:",
    "Generate audio semantic tokens based on the given conditions:",
)
MODEL_PREFIX = "acestep"
# A repaint may end this far behind the source: clients round lengths.
SLACK_S = 0.1


@dataclass(frozen=True)
class TaskRequest:
    """One task: the `values` of its generations' bodies without their `seeds`, and what needs the source's length.

    repaint: start and end in seconds; an end of None is that of the source. ignored: parameters without effect.
    """

    task: Task
    values: dict[str, Any]
    seeds: tuple[int, ...]
    repaint: tuple[float, float | None] | None
    lyrics: str
    ignored: tuple[str, ...]

    @property
    def needs_source(self) -> bool:
        """Whether the source that was sent is used."""
        return self.task != "text2music"

    def with_source(self, source_id: str, source_s: float) -> dict[str, Any]:
        """The values for a source of that length. Raises ProblemError."""
        values: dict[str, Any] = {**self.values, "source_id": source_id}
        if self.repaint is None:
            return values
        start_s, end_s = self.repaint
        start_s = source_s if abs(start_s - source_s) <= SLACK_S else start_s
        end_s = source_s if end_s is None or abs(end_s - source_s) <= SLACK_S else end_s
        if not 0.0 <= start_s < end_s:
            refuse_field(
                "repainting_start", f"{start_s:g} to {end_s:g} s is no part of the source, which has {source_s:g} s"
            )
        values["repaint"] = [{"start_s": start_s, "end_s": end_s}]
        return values if end_s <= source_s else {**values, "seconds": end_s}


def task_request(fields: Fields, files: Collection[str], bundle: Bundle) -> TaskRequest:
    """The task that `fields` and the `files` (src_audio, reference_audio) describe. Raises ProblemError."""
    for name, neutral in NEUTRAL.items():
        _check_neutral(fields, name, neutral)
    task = _task(fields, bundle)
    _check_files(fields, files, task)
    lyrics = fields.text("lyrics")
    has_tags = bool(lyrics) and not is_instrumental(lyrics) and "lyrics" in plan_text_options(bundle)
    untaken = untaken_options(bundle) | (frozenset() if has_tags else plan_text_options(bundle) & {"lyrics"})
    metadata, words, ignored = _metadata(fields, untaken, bundle.controls)
    has_planner = "plan" not in untaken
    prompt = fields.text("prompt") or fields.text("global_caption") or fields.text("sample_query")
    values = {
        "prompt": ", ".join(filter(None, [prompt, *words])),
        "response_format": _format(fields),
        "task": task,
        **({"plan": fields.flag("thinking") or has_tags} if has_planner else {}),
        **_given(negative_prompt=fields.text("negative_prompt") or None, seconds=_seconds(fields, task)),
        **_given(**_sampler(fields, bundle), **_strengths(fields, files, task, bundle), **metadata),
        **_given(**_instruction(fields, task, untaken)),
    }
    if codes := fields.text("audio_code_string"):
        values |= {"codes": codes, "task": None if task == "text2music" else task}
    return TaskRequest(
        task=task,
        values=values,
        seeds=_seeds(fields),
        repaint=_repaint(fields, task),
        lyrics=lyrics,
        ignored=(
            *(name for name in PLANNED if fields.flag(name) and (name != "thinking" or not has_planner)),
            *ignored,
        ),
    )


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _check_neutral(fields: Fields, name: str, neutral: bool | float | str) -> None:
    if isinstance(neutral, bool):
        value: Any = fields.flag(name, neutral)
    else:
        value = fields.text(name) if isinstance(neutral, str) else fields.number(name)
    if value not in (None, "", neutral):
        refuse_field(name, "this server cannot do that", "leave it out")


def _task(fields: Fields, bundle: Bundle) -> Task:
    task, known = fields.text("task_type") or "text2music", known_tasks(bundle)
    found = next((name for name in known if name == task), None)
    if found is None:
        refuse_field("task_type", f"expected {', '.join(known)}, which this model knows, got {quoted(task)}")
    return found


def _check_files(fields: Fields, files: Collection[str], task: Task) -> None:
    """Refuse paths, and tasks whose source is missing."""
    for part in ("src_audio", "reference_audio"):
        path = f"{part}_path"
        is_used = part == "reference_audio" or task != "text2music"
        if is_used and part not in files and fields.text(path):
            refuse_field(path, "files of the server are not read", f"send the file as the form's part {part}")
    if task != "text2music" and "src_audio" not in files and not (task == "cover" and fields.text("audio_code_string")):
        refuse_field("src_audio", f"task {task} needs a source", "send the file as the form's part src_audio")


def _format(fields: Fields) -> str:
    name = fields.text("audio_format") or "mp3"
    if (found := str(format_name(name))) not in FORMATS:
        refuse_field("audio_format", f"expected {', '.join(FORMATS)} or opus, got {quoted(name)}")
    return found


def _seconds(fields: Fields, task: Task) -> float | None:
    """The length; None for the default, which is the source's where there is one."""
    seconds = fields.number("audio_duration")
    return seconds if seconds and seconds > 0 and task == "text2music" else None


def _sampler(fields: Fields, bundle: Bundle) -> dict[str, Any]:
    """Steps, guidance and solver; guidance only where the model works with it."""
    guidance, shift = fields.number("guidance_scale"), fields.number("shift")
    is_guided = bundle.sampler.guidance != 1.0
    start, end = fields.number("cfg_interval_start"), fields.number("cfg_interval_end")
    values: dict[str, Any] = {
        "steps": fields.integer("inference_steps"),
        "shift": None if shift == DEFAULT_SHIFT else shift,
        "guidance": guidance if is_guided and guidance != DEFAULT_GUIDANCE else None,
        "cfg_interval_start": start if is_guided and start else None,
        "cfg_interval_end": end if is_guided and end != 1.0 else None,
        "solver": fields.text("infer_method") or None,
    }
    if timesteps := _timesteps(fields):
        values |= {"timesteps": timesteps, "steps": None, "shift": None}
    return values


def _timesteps(fields: Fields) -> list[float]:
    """Numbers, as a list or a text with commas; the last 0 is left out, it follows anyway."""
    try:
        times = [float(text) for text in fields.texts("timesteps")]
    except ValueError:
        refuse_field("timesteps", "expected numbers with commas between them")
    return times[:-1] if times and times[-1] == 0.0 else times


def _strengths(fields: Fields, files: Collection[str], task: Task, bundle: Bundle) -> dict[str, Any]:
    """1 keeps most: of a cover's source, else of the reference. Without structure, a cover starts at its source."""
    strength, noise = fields.number("audio_cover_strength"), fields.number("cover_noise_strength")
    values: dict[str, Any] = {}
    if task == "cover" or fields.text("audio_code_string"):
        values["structure_strength" if bundle.structure else "denoise"] = (
            strength if strength is None or bundle.structure else 1 - strength * (1 - COVER_DENOISE)
        )
    elif "reference_audio" in files:
        values["timbre_strength"] = strength
    return values | {"denoise": 1 - noise} if noise and task == "cover" else values


def _metadata(
    fields: Fields, untaken: Collection[str], controls: ControlsSpec
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Options that the model takes, words for its prompt, and what was given in vain, by its name here.

    Lyrics are not given up silently.
    """
    lyrics, language = fields.text("lyrics"), fields.text("vocal_language")
    if "lyrics" in untaken and lyrics and not is_instrumental(lyrics):
        refuse_field("lyrics", "this model does not sing", "leave them out")
    values = {
        **{name: _read(fields, name) for name in READERS},
        "lyrics": lyrics or None,
        "language": None if language in ("", "unknown") else language,
    }
    words, lost = [], []
    for name in ("bpm", "key", "time_signature"):
        if name in untaken and values[name] is not None:
            said, _ = controls.heard({"scale" if name == "key" else name: values[name]})
            words += said
            lost += [] if said else [THEIR_NAMES.get(name, name)]
    return {name: value for name, value in values.items() if name not in untaken}, words, lost


def _read(fields: Fields, name: str) -> Any:
    """An option that is a word, as it is checked; the API's 0 and less stand for none. Raises ProblemError."""
    theirs = THEIR_NAMES.get(name, name)
    value = READERS[name](fields.text(theirs))
    if (isinstance(value, float) and value <= 0) or value in ("-1", "0"):
        return None
    try:
        return getattr(TextOptions.model_validate({name: value}), name)
    except ValidationError as error:
        refuse_field(theirs, options_error(error, TextOptions).what.removeprefix(f"{name}: "))


def _instruction(fields: Fields, task: Task, untaken: Collection[str]) -> dict[str, Any]:
    """The instruction that was sent, else the tracks that the task's instruction names."""
    instruction = fields.text("instruction")
    if instruction and instruction not in DEFAULT_INSTRUCTIONS and "instruction" not in untaken:
        return {"instruction": instruction}
    tracks = {"track": fields.text("track_name") or None, "track_classes": fields.texts("track_classes") or None}
    return {name: value for name, value in tracks.items() if TRACK_OPTIONS.get(task) == name}


def _seeds(fields: Fields) -> tuple[int, ...]:
    """One per generation: those that were given, then those that follow the last of them; else drawn."""
    size = fields.integer("batch_size")
    size = DEFAULT_BATCH if size is None else size
    if not 1 <= size <= MAX_BATCH:
        refuse_field("batch_size", f"expected 1 to {MAX_BATCH}, got {size}")
    try:
        given = [int(text) for text in fields.texts("seed") if text != "-1"]
    except ValueError:
        refuse_field("seed", "expected a whole number, or several with commas between them")
    if fields.flag("use_random_seed", True) or not given:
        return tuple(draw_seed() for _ in range(size))
    seeds = [*given, *(given[-1] + more for more in range(1, size))][:size]
    if not 0 <= min(seeds) <= max(seeds) <= MAX_SEED:
        refuse_field("seed", f"expected 0 to {MAX_SEED}")
    return tuple(seeds)


def _repaint(fields: Fields, task: Task) -> tuple[float, float | None] | None:
    """What is generated anew, or what a lego adds to; a lego without it adds to all."""
    start, end = fields.number("repainting_start") or 0.0, fields.number("repainting_end")
    end = None if end is None or end <= 0 else end
    if task == "repaint" or (task == "lego" and (start, end) != (0.0, None)):
        return start, end
    return None
