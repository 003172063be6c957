"""What a generation is to make of its source: the task, and whether the other options fit it."""

from __future__ import annotations

from runtime.base.errors import RequestError
from runtime.config.bundle import Bundle
from runtime.config.codec import Latents
from runtime.config.conditions import Task
from runtime.requests.options import GenerationOptions

# Tasks that need no instruction: what is given selects them, too.
PLAIN_TASKS: tuple[Task, ...] = ("text2music", "cover", "repaint")
# Task -> the option that names its tracks.
TRACK_OPTIONS: dict[Task, str] = {"extract": "track", "lego": "track", "complete": "track_classes"}


def known_tasks(bundle: Bundle) -> list[Task]:
    """The tasks that a bundle knows: those of its instructions, and those that only sources and masks make."""
    instructions = [] if bundle.text_encoder is None else list(bundle.text_encoder.instructions)
    return list(dict.fromkeys((*PLAIN_TASKS, *instructions)))


def task_of(options: GenerationOptions, source: Latents | None) -> Task:
    """The options' task, else the one that codes, masks and the source (or the structure of one) say."""
    if options.task is not None:
        return options.task
    if has_mask(options):
        return "repaint"
    return "cover" if options.codes is not None or is_cover(options, source) else "text2music"


def is_cover(options: GenerationOptions, source: Latents | None) -> bool:
    """Whether the source can only be meant as a start: no option says another use for it."""
    uses = ("mask", "repaint", "initial_noise_curve", "sde_curve", "target_curve", "x0_strength")
    is_free = source is not None and options.task in (None, "cover")
    return is_free and all(getattr(options, use) is None for use in uses)


def has_mask(options: GenerationOptions) -> bool:
    """Whether only a part is generated anew."""
    return options.repaint is not None or options.mask is not None


def check_task(options: GenerationOptions, source: Latents | None, bundle: Bundle) -> None:
    """Raises RequestError where the options' task contradicts the inputs, and for tracks that it does not take."""
    task, known = task_of(options, source), known_tasks(bundle)
    if task not in known:
        raise RequestError(
            f"bundle {bundle.name!r} has no instruction for {task}", field="task", fix=f"one of {', '.join(known)}"
        )
    for name in ("track", "track_classes"):
        if getattr(options, name) is not None and TRACK_OPTIONS.get(task) != name:
            tasks = " or ".join(task for task, option in TRACK_OPTIONS.items() if option == name)
            raise RequestError(f"has no effect in task {task}", field=name, fix=f"task {tasks}")
        if getattr(options, name) is not None and options.instruction is not None:
            raise RequestError("has no effect beside an instruction", field=name, fix="leave it out")
    if options.task is not None:
        _check_inputs(options, source)


def _check_inputs(options: GenerationOptions, source: Latents | None) -> None:
    task, is_masked = options.task, has_mask(options)
    has_known = source is not None or (task == "cover" and options.codes is not None)
    for is_wrong, why, fix in (
        (task != "text2music" and not has_known, "needs a source", "give a source, or leave the task out"),
        (task == "repaint" and not is_masked, "needs repaint or mask", "say what is generated anew"),
        (
            task == "text2music" and (is_masked or is_cover(options.model_copy(update={"task": None}), source)),
            "takes no source to start from",
            "leave the source out, or the task",
        ),
        (
            task in ("cover", "extract", "complete") and is_masked,
            "makes all of it anew: it takes no repaint and no mask",
            "leave them out, or task repaint",
        ),
    ):
        if is_wrong:
            raise RequestError(f"{task} {why}", field="task", fix=fix)
