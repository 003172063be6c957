"""Public options to requests: texts become tokens, curves one value per frame, sources the frames of one segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import RequestError
from runtime.config.bundle import Bundle
from runtime.config.codec import Latents, Pcm
from runtime.config.conditions import DEFAULTS, Task
from runtime.music.envelopes import HELD, PLAIN
from runtime.music.note_levels import Phrase, with_notes
from runtime.pipeline.sampling import Sampling
from runtime.pipeline.structure import StructureCodec, given_latents, hints_of
from runtime.pipeline.text_encoder import TextEncoder, Tokens
from runtime.requests.curves import Curve
from runtime.requests.option_types import Values
from runtime.requests.options import COVER_DENOISE, TEXT_OPTIONS, GenerationOptions, given_options
from runtime.requests.request import DENOISE_MIN, Condition, Dcw, GenerationRequest, LatentMask, StepParameters, Target
from runtime.requests.seeds import draw_seed
from runtime.requests.segments import Segment, masked_frames, requested_mask, step_parameters
from runtime.requests.tasks import is_cover, task_of
from runtime.requests.timesteps import leave_out, log_snr_schedule, schedule
from runtime.requests.torch_noise import torch_noise

SEND_CONDITION = "--condition FILE on the command line, `condition` in Python, a form's part `condition` over HTTP"

T = TypeVar("T")
# Opens PCM `[n, channels]` float32 in chunks, at the codec's rate and channels.
SourceAudio = Callable[[], Iterator[Pcm]]


@dataclass(frozen=True)
class GenerationInputs:
    """What a generation takes besides its options.

    condition `[L, D]` float32: tokens in place of the prompt's. source, target `[N, C]` float32 latents and noise
    `[N, C]` float32 in place of the seed's: they begin at frame 0 of the whole generation (of the segment, in one
    without end); a target that is None is the source. session: whose step parameters apply. client: whose limit on
    generations applies. source_audio: opens the samples that the source was encoded from; the audio of what is kept
    consists of them. encoded: which of "source" and "target" were encoded from audio that the model did not make.
    timbre `[F, C]` float32: latents of a reference, as Pipeline.read_timbre gives them. structure `[N, C]` float32:
    latents whose structure is kept; None: a cover's source. hints `[N, C]` float32: those of a structure, in its place.
    phrases: notes to play, over the hints. loop_frames: of a loop; see GenerationRequest. Arrays stay the caller's and
    are not written to.
    """

    condition: Tokens | None = None
    source: Latents | None = None
    target: Latents | None = None
    noise: Latents | None = None
    session: str = ""
    client: str = ""
    source_audio: SourceAudio | None = None
    encoded: frozenset[str] = frozenset()
    timbre: Latents | None = None
    structure: Latents | None = None
    hints: Latents | None = None
    phrases: tuple[Phrase, ...] = ()
    loop_frames: int | None = None

    @property
    def known(self) -> Latents | None:
        """The latents whose length a generation has by default."""
        given = (self.source, self.structure, self.hints)
        return next((latents for latents in given if latents is not None), None)


NO_INPUTS = GenerationInputs()


@dataclass(frozen=True)
class RequestComposer:
    """Composes requests for one bundle. Parts that the bundle does not have are None. Any thread may use it."""

    bundle: Bundle
    text_encoder: TextEncoder | None
    structure: StructureCodec | None = None

    def compose(
        self,
        options: GenerationOptions,
        segment: Segment,
        inputs: GenerationInputs = NO_INPUTS,
        tail: Latents | None = None,
    ) -> GenerationRequest:
        """The request for one segment of a generation; options without a seed get a random one.

        tail `[n, C]`: the frames right before the segment's new ones, at least its `keep_frames`; None where the
        segment keeps none. Raises RequestError.
        """
        sampler, source = self.bundle.sampler, inputs.source
        denoise = denoise_of(options, source, self.bundle)
        sampling = Sampling.of(options, self.bundle, denoise=denoise)
        mask = self._mask(options, segment, source, tail)
        seed = draw_seed() if options.seed is None else options.seed
        return GenerationRequest(
            frames=segment.frames,
            conditions=self._counted(self._conditions(options, segment, inputs)),
            negatives=self._counted(self._negatives(options, segment)),
            steps=sampling.num_computed,
            shift=_first(options.shift, sampler.shift),
            **self._steps(options, sampling, denoise),
            denoise=denoise,
            seed=seed,
            guidance_mode=sampling.guidance_mode,
            solver=sampling.solver,
            context=self._context(options, segment, inputs, mask),
            source=None if source is None else segment.part(source, self.bundle.silence(segment.frames)),
            noise=self._noise(options, segment, seed, inputs.noise),
            initial_noise_curve=_curve(options.initial_noise_curve, segment),
            loop_frames=inputs.loop_frames,
            mask=mask,
            target=self._target(options, segment, source if inputs.target is None else inputs.target),
            parameters=self._parameters(options, segment),
            session=inputs.session,
            client=inputs.client,
        )

    def _tokens(
        self,
        text: str,
        segment: Segment,
        field: str,
        values: Mapping[str, Any] = {},
        timbre: Tokens | None = None,
    ) -> Tokens:
        if self.text_encoder is not None:
            canvas_s = segment.frames / self._rate_hz
            return self.text_encoder.encode(text, seconds=canvas_s, field=field, values=values, timbre=timbre)
        if text:
            raise RequestError(
                f"bundle {self.bundle.name!r} takes no text: it has no [text_encoder]",
                field=field,
                fix="leave the text empty" if self.has_null else SEND_CONDITION,
            )
        if self.bundle.decoder.inputs.condition is None:
            return Condition.none().tokens
        null = self.bundle.null_condition()
        if null is None:
            raise RequestError(
                f"bundle {self.bundle.name!r} has neither a text encoder nor a null condition: its generations need "
                "condition tokens",
                field="condition" if field == "prompt" else field,
                fix=SEND_CONDITION
                if field == "prompt"
                else "guidance 1, or null_condition in [decoder] of bundle.toml",
            )
        return null

    @property
    def has_null(self) -> bool:
        """Whether a generation needs neither a text nor a condition."""
        takes_none = self.bundle.decoder.inputs.condition is None
        return takes_none or self.text_encoder is not None or self.bundle.null_condition() is not None

    def _counted(self, conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
        """With equal tokens as one, where the decoder counts them. Blends of tokens need each in its place: they come
        before.
        """
        return tuple(one.merged() for one in conditions) if self.bundle.decoder.mask_counts else conditions

    def _conditions(
        self, options: GenerationOptions, segment: Segment, inputs: GenerationInputs
    ) -> tuple[Condition, ...]:
        """Those of the task; beside a cover's, with the rest of its strength, those of text2music."""
        if inputs.condition is not None:
            return (Condition(inputs.condition),)
        task = task_of(options, inputs.known)
        if options.cover_strength is None:
            return self._task_conditions(options, segment, inputs, task)
        share = np.asarray(segment.curve(options.cover_strength), np.float32)
        shares: tuple[tuple[Task, NDArray[np.float32]], ...] = ((task, share), ("text2music", 1 - share))
        return tuple(
            replace(one, weight=one.weight * share)
            for task, share in shares
            if share.any()
            for one in self._task_conditions(options, segment, inputs, task)
        )

    def _task_conditions(
        self, options: GenerationOptions, segment: Segment, inputs: GenerationInputs, task: Task
    ) -> tuple[Condition, ...]:
        """One per prompt; two where the strength of the timbre is a curve: with it, and with that of silence."""
        strength: Values = 1.0 if options.timbre_strength is None else options.timbre_strength
        if inputs.timbre is None or not isinstance(strength, list):
            level = 1.0 if isinstance(strength, list) else strength
            return self._prompt_conditions(options, segment, task, self._timbre(inputs.timbre, level))
        share = np.asarray(segment.curve(strength), np.float32)
        return tuple(
            replace(one, weight=one.weight * weight)
            for weight, level in ((share, 1.0), (1.0 - share, 0.0))
            for one in self._prompt_conditions(options, segment, task, self._timbre(inputs.timbre, level))
        )

    def _timbre(self, latents: Latents | None, strength: float) -> Tokens | None:
        if latents is None:
            return None
        if self.text_encoder is None or self.text_encoder.timbre is None:
            raise no_timbre(self.bundle)
        return self.text_encoder.timbre.encode(latents, strength)

    def _prompt_conditions(
        self, options: GenerationOptions, segment: Segment, task: Task, timbre: Tokens | None
    ) -> tuple[Condition, ...]:
        def encode(text: str, field: str) -> Tokens:
            return self._tokens(text, segment, field, text_values(options, task, text, timbre), timbre)

        if isinstance(options.prompt, str):
            return (Condition(encode(options.prompt, "prompt")),)
        tokens = [encode(item.text, f"prompt.{i}.text") for i, item in enumerate(options.prompt)]
        if options.blend == "tokens":
            return (Condition(blend_tokens(tokens, [cast(float, item.weight) for item in options.prompt])),)
        conditions = tuple(
            Condition(one, segment.curve(item.weight), item.start, item.end)
            for one, item in zip(tokens, options.prompt, strict=True)
        )
        # A prompt that is not heard in this segment takes no row of it.
        return tuple(one for one in conditions if isinstance(one.weight, float) or one.weight.any()) or conditions

    def _negatives(self, options: GenerationOptions, segment: Segment) -> tuple[Condition, ...]:
        """Empty where the bundle has no null condition and the options ask for neither guidance nor a negative.

        Guidance of a decoder without condition has only the initial noise to push away from (mode "self").
        """
        asks_nothing = not options.negative_prompt and options.guidance in (None, 1.0)
        if self.bundle.decoder.inputs.condition is None:
            if asks_nothing or (options.guidance_mode == "self" and not options.negative_prompt):
                return ()
            field = "negative_prompt" if options.negative_prompt else "guidance"
            raise RequestError(
                "the decoder takes no condition", field=field, fix='leave it out, or guidance_mode "self"'
            )
        if asks_nothing and not self.has_null:
            return ()
        return (Condition(self._tokens(options.negative_prompt, segment, "negative_prompt")),)

    def _steps(self, options: GenerationOptions, sampling: Sampling, denoise: float) -> dict[str, Any]:
        """The times of the steps, None where the shift makes them; what is not the solver's own of those that are
        fitted, or of which some are left out."""
        if sampling.fitted is not None:
            fitted = sampling.fitted
            return {"timesteps": fitted.times, "ends": fitted.ends, "extrapolation": fitted.extrapolation}
        times = self.all_times(options, sampling.steps, sampling.solver, denoise)
        if sampling.kept is None:
            return {"timesteps": times}
        shift = self.bundle.sampler.shift
        every = schedule(sampling.steps, shift=shift) if times is None else np.array([*times, 0.0], np.float32)
        kept, factors = leave_out(every, sampling.kept, is_multistep=sampling.solver == "ab2")
        return {"timesteps": kept, "extrapolation": factors}

    def all_times(
        self, options: GenerationOptions, steps: int, solver: str, denoise: float = 1.0
    ) -> tuple[float, ...] | None:
        """The given times, or the bundle's own for so many steps; None where the shift makes them."""
        sampler = self.bundle.sampler
        if options.timesteps is not None:
            return tuple(options.timesteps)
        schedules = sampler.steps_of(solver).schedules
        if options.shift is None and denoise >= 1.0 and steps in schedules:
            return schedules[steps]
        if sampler.schedule is None or denoise <= DENOISE_MIN:
            return None
        times = log_snr_schedule(steps, sampler.schedule.start, sampler.schedule.end, denoise=denoise)
        return tuple(times[:-1].tolist())

    def _parameters(self, options: GenerationOptions, segment: Segment) -> StepParameters:
        sampler, dcw = self.bundle.sampler, Dcw(**self.bundle.sampler.dcw.model_dump())
        defaults = StepParameters(
            guidance=sampler.guidance,
            dcw=None if dcw.is_neutral else dcw,
            cfg_interval_start=sampler.cfg_interval_start,
            cfg_interval_end=sampler.cfg_interval_end,
        )
        return step_parameters(options, segment).over(defaults)

    def _noise(self, options: GenerationOptions, segment: Segment, seed: int, noise: Latents | None) -> Latents | None:
        if noise is None:
            if options.noise != "torch":
                return None
            return torch_noise(segment.frames, self.bundle.latents.channels, seed, self.bundle.sampler.noise_layout)
        end = segment.first_frame + segment.frames
        if len(noise) < end:
            raise RequestError(f"has {len(noise)} frames, this segment needs {end}", field="noise")
        return noise[segment.first_frame : end]

    def _mask(
        self, options: GenerationOptions, segment: Segment, source: Latents | None, tail: Latents | None
    ) -> LatentMask | None:
        """1 where frames are generated, 0 where they are kept: the tail, and what a mask or a repaint leaves out."""
        requested = requested_mask(options, segment, self._rate_hz)
        if requested is not None and source is None:
            raise RequestError("needs a source to keep", field="mask" if options.repaint is None else "repaint")
        if requested is None and not segment.keep_frames:
            return None
        silence = self.bundle.silence(segment.frames)
        original = silence if source is None else segment.part(source, silence)
        mask = np.ones(segment.frames, np.float32) if requested is None else requested
        if segment.keep_frames:
            assert tail is not None
            mask[: segment.keep_frames] = 0.0
            original[: segment.keep_frames] = tail[len(tail) - segment.keep_frames :]
        return LatentMask(mask, original)

    def _context(
        self, options: GenerationOptions, segment: Segment, inputs: GenerationInputs, mask: LatentMask | None
    ) -> NDArray[np.float32] | None:
        """`[T, X]`: known latents, elsewhere what the task gives; then 0 where known, or outside of what a lego adds
        to, and 1 elsewhere. None for decoders without a context input.
        """
        if self.bundle.context is None:
            return None
        channels = self.bundle.latents.channels
        context = np.ones((segment.frames, 2 * channels), np.float32)
        silence, hints = self.bundle.silence(segment.frames), inputs.hints
        if hints is None:
            hints = hints_of(self.structure, options, inputs.source, inputs.structure)
        given = given_latents(options, segment, silence, inputs.source, hints)
        context[:, :channels] = self._with_notes(given, options, segment, inputs.phrases)
        if options.task == "lego" and (window := masked_frames(options, segment, self._rate_hz)) is not None:
            context[window == 0.0, channels:] = 0.0
        if mask is not None and mask.original is not None:
            known = np.asarray(mask.mask) == 0.0
            context[known, :channels] = mask.original[known]
            context[known, channels:] = 0.0
        return context

    def _with_notes(
        self, given: Latents, options: GenerationOptions, segment: Segment, phrases: Sequence[Phrase]
    ) -> Latents:
        """What is given to generations, `[T, C]`, with notes to play."""
        if not phrases:
            return given
        assert self.bundle.notes is not None
        spec, silence = self.bundle.notes, self.bundle.silence(1)[0]
        share = segment.curve(1.0 if options.notes_strength is None else options.notes_strength)
        hints = [phrase.moved(spec.hint_delay) for phrase in phrases]
        envelope = HELD if spec.has_envelopes else PLAIN
        return with_notes(given, hints, spec, silence, segment.first_frame, share, envelope)

    @property
    def _rate_hz(self) -> float:
        return self.bundle.latents.frame_rate_hz

    def _target(self, options: GenerationOptions, segment: Segment, latents: Latents | None) -> Target | None:
        if latents is not None:
            frames = segment.part(latents, self.bundle.silence(segment.frames))
            return Target(frames, _curve(options.target_curve, segment), options.target_gate)
        for field in ("target_curve", "x0_strength"):
            if getattr(options, field) is not None:
                raise RequestError("needs a target or a source", field=field)
        return None


def denoise_of(options: GenerationOptions, source: Latents | None, bundle: Bundle) -> float:
    """Its denoise; with timesteps, a source is mixed in as far as the first of them is below 1."""
    if options.timesteps is not None:
        return 1.0 if source is None else options.timesteps[0]
    starts_from_it = is_cover(options, source) and bundle.structure is None
    return _first(options.denoise, COVER_DENOISE if starts_from_it else bundle.sampler.denoise)


def blend_tokens(tokens: Sequence[Tokens], weights: Sequence[float]) -> Tokens:
    """`[L, D]` float32: the mean of several texts' tokens by weight, position by position, L that of the longest.

    Shorter ones count as zeros beyond their end. A text with weight 0 has no part in it. One weight is above 0.
    """
    used = [(one, weight) for one, weight in zip(tokens, weights, strict=True) if weight > 0]
    blended = np.zeros((max(len(one) for one, _ in used), tokens[0].shape[1]), np.float32)
    for one, weight in used:
        blended[: len(one)] += one * (weight / sum(weight for _, weight in used))
    return blended


def no_timbre(bundle: Bundle) -> RequestError:
    """What a reference for a bundle without [timbre] is refused with."""
    return RequestError(f"bundle {bundle.name!r} has no [timbre]", field="timbre", fix="leave it out")


def text_values(options: GenerationOptions, task: Task, text: str, timbre: Tokens | None) -> dict[str, Any]:
    """What fills templates besides a prompt's text; nothing for what is unconditional."""
    options_given = {name: getattr(options, name) for name in given_options(options, TEXT_OPTIONS)}
    given = {name: value for name, value in options_given.items() if value != DEFAULTS.get(name)}
    return {**given, "task": task} if text or given or timbre is not None else {}


def _curve(values: Values | None, segment: Segment) -> Curve | None:
    return None if values is None else segment.curve(values)


def _first(option: T | None, default: T) -> T:
    return default if option is None else option
