"""What a tick's record says of the planner's part, and that its flags are read once its tokens are taken."""

from __future__ import annotations

from runtime.devices.device import HostEvent, HostStream
from runtime.tick.language.sequence import PromptChunk
from runtime.tick.language.step import DRAFT, LanguageKey, LanguageLaunch, LanguagePart
from runtime.tick.runner import LaunchFailures
from runtime.tick.scheduling.slot import Slot

SLOT = Slot(id="a", runner=None, work=None, bucket=0, steps=4)


def part(width: int | None, chunk: PromptChunk | None = None) -> LanguagePart:
    return LanguagePart((SLOT,), chunk, None if width is None else LanguageKey(width, width, 1, 2, 1, 64, 0), 2, 3)


def test_a_part_says_what_it_does() -> None:
    chunk = PromptChunk(0, 0, (1, 2))
    found = [part(width, chunk).variants for width in (None, 1, 5, DRAFT)]
    assert found == [("prefill",), ("prefill", "decode"), ("prefill", "verify"), ("prefill", "draft")]
    assert part(None).variants == ()


def test_flags_are_read_once_the_tokens_are_taken() -> None:
    def collect(launched: LanguageLaunch) -> None:
        launched.bad.append((SLOT, 7))

    launched = LanguageLaunch(collect, part(1), LaunchFailures(), HostEvent(2.0), HostEvent(2.5), [])
    assert list(launched.non_finite()) == [(SLOT, 7)]


def test_a_span_is_the_time_of_all_its_executes() -> None:
    launched = LanguageLaunch(lambda one: None, part(1), LaunchFailures(), HostEvent(2.0), HostEvent(2.5), [])
    (span,) = launched.spans(HostStream(), HostEvent(1.0))
    assert (span.slots, span.rows, span.executes, span.begin_ms, span.ms) == (1, 2, 3, 1000.0, 500.0)
