"""Sizes of engines: their shape ranges, and the samples at which they are compared with their graphs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from engine_build.specs.engine_spec import Range, Sizes
from runtime.config.codec import CodecDecodeSpec, CodecEncodeSpec
from runtime.config.deployment import Deployment
from runtime.config.targets import ADAPTER_RANK_MULTIPLE, ShapeRange, ShapeRanges
from runtime.requests.request import MAX_CONDITIONS

SAMPLE_FRAMES = 32
# Rows times frames of the decoder. The reference runs on the CPU, where this is 11 TFLOP at 1.6 B parameters.
LARGEST_SAMPLE = 6000


def decoder_ranges(deployment: Deployment) -> tuple[dict[str, Range], ...]:
    """The deployment's shape ranges, one optimization profile each."""
    return tuple(
        {"R": _range(shape.rows), "T": _range(shape.frames), "L": _range(shape.tokens)} for shape in deployment.shapes
    )


def adapted_ranges(deployment: Deployment) -> tuple[dict[str, Range], ...]:
    """decoder_ranges() with the packed rank of adapters."""
    most = deployment.runtime.adapter_rank
    return tuple({**sizes, "Q": (ADAPTER_RANK_MULTIPLE, most, most)} for sizes in decoder_ranges(deployment))


def tick_ranges(
    deployment: Deployment, features: Collection[str], *, is_step: bool, row_multiple: int = 1
) -> tuple[dict[str, Range], ...]:
    """Sizes of the rows and step graphs: up to all slots with all their conditions, at every length of a shape range.

    Rows of all executes of a tick are in one buffer, each execute's at a multiple of `row_multiple`. Only blends have
    more than one positive and one negative row.
    """
    depth, first = deployment.runtime.depth, deployment.shapes[0].frames
    frames = (min(shape.frames.min for shape in deployment.shapes), first.opt, max_frames(deployment))
    per_slot = 2 if is_step and "blend" not in features else 2 * MAX_CONDITIONS
    conditions = (1, 2, MAX_CONDITIONS) if "blend" in features else (1, 1, 1)
    bands = (-(-frames[0] // 2), -(-frames[1] // 2), -(-frames[2] // 2))
    return (
        {
            "S": (1, depth, depth),
            "R": (1, 2 * depth, per_slot * depth * row_multiple),
            "T": frames,
            "B": bands,
            "K": conditions,
            "N": conditions,
        },
    )


def codec_ranges(
    hop_samples: int, half: CodecDecodeSpec | CodecEncodeSpec, batch: int = 1
) -> tuple[dict[str, Range], ...]:
    """Whole groups of frames: the fewest that there can be, up to the bundle's `window_frames` with both margins.

    With a batch a second range: of so many windows, as short as those of live sessions and of streams.
    """
    margins, least = 2 * half.margin_frames, 1 + half.missing(1)
    usual = max(min(SAMPLE_FRAMES * 2, half.window_frames) // half.align_frames * half.align_frames + margins, least)
    frames = (least, usual, max(half.window_frames + margins, least))
    samples = (frames[0] * hop_samples, frames[1] * hop_samples, frames[2] * hop_samples)
    alone: dict[str, Range] = {"B": (1, 1, 1), "T": frames, "W": samples}
    if batch == 1:
        return (alone,)
    few = (least, usual, usual)
    return alone, {"B": (2, batch, batch), "T": few, "W": (samples[0], samples[1], samples[1])}


def token_ranges(max_tokens: int) -> tuple[dict[str, Range], ...]:
    """One text at a time, of any length."""
    return ({"B": (1, 1, 1), "L": (1, -(-max_tokens // 2), max_tokens)},)


def decoder_samples(ranges: ShapeRanges) -> Iterator[Sizes]:
    """Corners of a range, kept small: opt lengths; all at min; max lengths with min rows; max rows with min frames.

    Of these only the first may be more work than LARGEST_SAMPLE.
    """
    rows, frames, tokens = ranges.rows, ranges.frames, ranges.tokens
    few = max(rows.min, min(2, rows.max, LARGEST_SAMPLE // frames.opt))
    yield {"R": few, "T": frames.opt, "L": tokens.opt}
    others = (
        {"R": rows.min, "T": frames.min, "L": tokens.min},
        {"R": rows.min, "T": frames.max, "L": tokens.max},
        {"R": rows.max, "T": frames.min, "L": tokens.opt},
    )
    yield from (sizes for sizes in others if sizes["R"] * sizes["T"] <= LARGEST_SAMPLE)


def new_lengths_first(samples: Sequence[Sizes]) -> tuple[Sizes, ...]:
    """The first sample of every length T before all others: of a large graph only these are run on the CPU."""
    firsts: dict[int, Sizes] = {}
    for sizes in samples:
        firsts.setdefault(sizes["T"], sizes)
    return (*firsts.values(), *(sizes for sizes in samples if sizes not in firsts.values()))


def max_frames(deployment: Deployment) -> int:
    """The largest T of a deployment."""
    return max(ranges.frames.max for ranges in deployment.shapes)


def _range(limits: ShapeRange) -> Range:
    return limits.min, limits.opt, limits.max
