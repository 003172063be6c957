"""Which audio has to be decoded and sent now: what comes next, and what was sent already and has changed since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from runtime.config.codec import Pcm
from runtime.live.playback.canvas import Placement, Timeline
from runtime.live.playback.playhead import LEAD_PER_DIP, Playhead
from runtime.live.playback.told_notes import ToldNotes
from runtime.live.protocol.actions import DecodeWindow, LiveModel
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.server_messages import Applied, TrackedNotes

# How long windows become that a client with a long lead gets. Both margins of a window of LONG_MARGINS margins are two
# fifths of its work.
LONG_WINDOW_S, LONG_MARGINS = 0.32, 3
CHUNK_S = 0.32  # What continues the audio is sent in chunks no longer than this, each when the client wants it.
FADE_S = 0.025  # Clients crossfade over this long where audio is replaced.


@dataclass(frozen=True)
class _Sent:
    """Samples start .. end of the axis were requested from a placement."""

    start: int
    end: int
    placement: Placement
    full_seq: int


@dataclass
class _Pending:
    """A window that is being decoded or sent, and the messages that follow the beginning of its audio."""

    window: DecodeWindow
    applied: list[Applied]
    requested_s: float
    is_done: bool = False
    pcm: Pcm | None = None
    num_sent: int = 0  # samples

    @property
    def next_sample(self) -> int:
        """The first sample that was not sent."""
        return self.window.start_sample + self.num_sent


@dataclass
class _Reported:
    """What `applied` messages have reported: the newest seqs, and the first samples of those that are not complete."""

    first_seq: int = 0
    full_seq: int = 0
    first_samples: dict[int, int] = field(default_factory=dict)


class _Margins:
    """What the codec needs around play frames: whole groups of frames of the canvas that is played there."""

    def __init__(self, model: LiveModel) -> None:
        self._frames, self._align = model.margin_frames, model.align_frames

    def phase(self, placement: Placement, frame: int) -> int:
        """What a group of the canvas's frames begins with: a play frame that is a multiple of its length with this."""
        return (placement.canvas_frame_at(frame) - frame) % self._align

    def start(self, placement: Placement, first: int) -> int:
        """Where the margin before a play frame begins: with a group that is known."""
        phase, wanted = self.phase(placement, first), max(first - self._frames, 0)
        wanted -= (wanted + phase) % self._align
        groups = (frame for frame in range(wanted, first + 1, self._align) if placement.part_at(frame))
        return next(groups, first)

    def end(self, placement: Placement, frame: int) -> int:
        """The play frame after the margin after a frame: there a group ends."""
        end = frame + 1 + self._frames
        return end + -(end + self.phase(placement, frame)) % self._align

    def is_known(self, placement: Placement, frame: int) -> bool:
        """Whether the margin after a play frame is."""
        return placement.part_at(self.end(placement, frame) - 1) is not None


class AudioSchedule:
    """Cuts windows out of the timeline and sends their audio in the order of the windows.

    `requested_until`: everything before is sent, being decoded, or skipped. `tick`: what `applied` messages name.
    notes: what tells the notes of every chunk; None: nothing does.
    """

    def __init__(
        self,
        model: LiveModel,
        timeline: Timeline,
        playhead: Playhead,
        epoch: int = 0,
        notes: ToldNotes | None = None,
    ) -> None:
        self.epoch, self._notes = epoch, notes
        self.tick: int | None = None
        self.requested_until = playhead.sent_until
        self._model, self._timeline, self._playhead = model, timeline, playhead
        self._margins, self._fade = _Margins(model), round(FADE_S * model.sample_rate_hz)
        self._ledger: list[_Sent] = []
        self._pending: dict[int, _Pending] = {}
        self._reported = _Reported()
        self._num_windows = 0
        self._waited_s = 0.0  # The last window that continued the audio, for the codec.
        self._checked_version = -1
        self._has_begun = False  # Something was requested in this epoch.
        self._has_underrun = False  # The client has no audio, and nothing was requested since.
        self._counted_until = -1  # `sent_until` at the last underrun: no other one before more is sent.

    def start_epoch(self) -> None:
        """A client that holds no audio has connected: send from the playhead on."""
        self.epoch += 1
        self.requested_until = self._playhead.sent_until
        self._has_begun = self._has_underrun = False
        self._ledger.clear()
        self._pending.clear()
        if self._notes is not None:
            self._notes.clear()

    def skip_missing(self, playhead_sample: int) -> None:
        """The client has played what there was: count an underrun, and go on with what comes next after its playhead.

        Before the first audio of an epoch it is no underrun.
        """
        if playhead_sample <= self._playhead.sent_until:
            return
        if self._has_begun and self._counted_until != self._playhead.sent_until:
            self._playhead.underruns += 1
            self._has_underrun = True
        if playhead_sample > self.requested_until:
            self._has_underrun = self._has_begun
            self._drop_late(playhead_sample)
            self._continue_at(self._playhead.reach)
        self._counted_until = self._playhead.sent_until

    def windows(self) -> list[DecodeWindow]:
        """The windows to decode now.

        While some wait for the codec, no further ones of their kind are cut: where it is slow they do not pile up, and
        those that replace audio have the newest changes.
        """
        self._forget()
        # A client that has no audio yet can take all of it.
        reach = self._playhead.reach if self._has_begun else self._playhead.position
        # Again after the next ones: a window across the start of a placement is replaced from there on.
        return [*self._changed_windows(reach), *self._next_windows(), *self._changed_windows(reach)]

    def is_pending(self, window: DecodeWindow) -> bool:
        """Whether a window is still to be decoded: not after a new epoch, nor where it would be late. Any thread."""
        pending = self._pending.get(window.index)
        return pending is not None and not pending.is_done

    @property
    def is_short(self) -> bool:
        """Whether more audio is wanted than is being decoded."""
        return not self._is_waiting(False) and self._playhead.wanted_until > self.requested_until

    def decoded(self, window: DecodeWindow, pcm: Pcm | None) -> None:
        """Take the PCM of a window; None: it is lost."""
        pending = self._pending.get(window.index)
        if pending is not None and window.epoch == self.epoch:
            pending.pcm, pending.is_done = pcm, True  # [samples, channels]

    def sendable(self) -> Iterator[AudioChunk | TrackedNotes | Applied]:
        """The chunks and messages to send now, in the order of the windows.

        What continues the audio does not wait for replacements before it, which may come late without a gap.
        """
        waiting: list[DecodeWindow] = []
        all_pending = list(self._pending.values())
        for place, pending in enumerate(all_pending, start=1):
            window = pending.window
            if pending.is_done and all(earlier.may_be_overtaken_by(window) for earlier in waiting):
                # Nothing waits for the rest of a window.
                is_last = not any(later.is_done for later in all_pending[place:])
                num_due = self._num_due(pending) if is_last else window.num_samples
                if num_due > pending.num_sent:
                    yield from self._chunk(pending, num_due)
                    yield from pending.applied
                    pending.applied = []
                if num_due == window.num_samples:
                    del self._pending[window.index]
                    continue
            waiting.append(window)

    @property
    def due_s(self) -> float | None:
        """When the next window or chunk is due; None where that does not depend on time."""
        unsent = (each.next_sample for each in self._pending.values() if each.pcm is not None)
        ahead = min([self.requested_until, *unsent]) - self._playhead.wanted_until
        return self._playhead.reaches_s(self._playhead.position + ahead) if ahead >= 0 else None

    def _continue_at(self, sample: int) -> None:
        """Play on at the next whole frame from a sample on, as if nothing had been between."""
        hop = self._model.hop_samples
        frame = -(-sample // hop)
        here = self._timeline.at(self.requested_until)
        if here is not None:
            position = here.canvas_frame_at(self.requested_until // hop)
            self._timeline.move(frame * hop, frame, position, here.band)
        self.requested_until = self._playhead.sent_until = frame * hop

    def _forget(self) -> None:
        position = self._playhead.position
        self._ledger = [sent for sent in self._ledger if sent.end > position]
        self._timeline.forget(position - self._fade)
        self._drop_late(position)

    def _drop_late(self, position: int) -> None:
        """What would be late is not decoded."""
        for pending in self._pending.values():
            pending.is_done |= pending.window.end_sample <= position

    def _is_waiting(self, is_replacing: bool) -> bool:
        """Whether windows of a kind wait for the codec."""
        return any(each.window.is_replacing == is_replacing and not each.is_done for each in self._pending.values())

    def _next_windows(self) -> Iterator[DecodeWindow]:
        wanted = self._playhead.wanted_until
        if self._is_waiting(False) or self.requested_until >= wanted:
            return
        until = self._until(wanted)
        while self.requested_until < until:
            start = self.requested_until
            # The old audio goes on for the length of the crossfade, so that the client has something to fade from.
            begun = start - (self._fade if self._has_begun and not self._has_underrun else 0)
            placement = self._timeline.at(begun)
            if placement is not None and not self._margins.is_known(placement, start // self._model.hop_samples):
                begun = start
                placement = self._timeline.at(begun)
            if placement is None:
                return
            end = max(until, start + round(self._model.window_s * self._model.sample_rate_hz))
            following = self._timeline.next_start(begun)
            end = end if following is None else min(end, following + self._fade)
            window = self._window(placement, start, end, is_replacing=False)
            if window is None:
                return
            self._has_begun, self._has_underrun = True, False
            self.requested_until = window.end_sample
            if following is not None and window.end_sample > following:
                self._checked_version = -1
            yield window

    def _until(self, wanted: int) -> int:
        """Where the next windows end.

        Most of the work of a short window is its margins: where the client needs a long lead, or the last window waited
        long, longer ones do. But none longer than its margins takes the time that others have who have as little left
        as this client.
        """
        if not self._has_begun:
            return wanted
        rate_hz = self._model.sample_rate_hz
        margin_s = self._model.margin_frames * self._model.hop_samples / rate_hz
        lead_s = max(self._playhead.lead_s, LEAD_PER_DIP * self._waited_s)
        seconds = min(lead_s / 2, max(LONG_WINDOW_S, LONG_MARGINS * margin_s))
        if not self._has_underrun:
            left_s = (self.requested_until - self._playhead.position) / rate_hz
            seconds = min(seconds, max(left_s, 2 * margin_s))
        return self.requested_until + round(max(self._model.window_s, seconds) * rate_hz)

    def _changed_windows(self, reach: int) -> Iterator[DecodeWindow]:
        if self._checked_version == self._timeline.version or self._is_waiting(True):
            return
        self._checked_version = self._timeline.version
        changed = list(self._changed_ranges(reach))
        if not changed:
            return
        start, end = changed[0][0], changed[-1][1]
        while start < end:
            placement, following = self._timeline.at(start), self._timeline.next_start(start)
            assert placement is not None
            window = self._window(placement, start, end if following is None else min(end, following), True)
            if window is None:
                self._checked_version = -1
                return
            yield window
            start = window.end_sample

    def _changed_ranges(self, reach: int) -> Iterator[tuple[int, int]]:
        """The samples from `reach` on that were requested and would sound different now."""
        for sent in self._ledger:
            start = max(sent.start, reach)
            while start < sent.end:
                placement, following = self._timeline.at(start), self._timeline.next_start(start)
                assert placement is not None
                end = sent.end if following is None else min(sent.end, following)
                yield from self._changed_frames(sent.placement, placement, start, end)
                start = end

    def _changed_frames(self, old: Placement, new: Placement, start: int, end: int) -> Iterator[tuple[int, int]]:
        """A frame sounds different where a latent within the codec's margin differs."""
        hop, margin = self._model.hop_samples, self._model.margin_frames + self._model.align_frames - 1
        if old is new:
            return
        first, last = start // hop, -(-end // hop)
        differs = {frame for frame in range(max(first - margin, 0), last + margin) if not new.is_same_at(old, frame)}
        for frame in range(first, last):
            if any(near in differs for near in range(frame - margin, frame + margin + 1)):
                yield max(frame * hop, start), min((frame + 1) * hop, end)

    def _window(self, placement: Placement, start: int, end: int, is_replacing: bool) -> DecodeWindow | None:
        """A window from sample `start` to `end` or less; None where the latents are not known yet.

        It ends where the seqs change, before frames whose margin is not known, and where a loop that is not of whole
        groups of the codec's begins again.
        """
        model, hop = self._model, self._model.hop_samples
        first = start // hop
        part = placement.part_at(first)
        if part is None:
            return None
        low, last = self._margins.start(placement, first), first
        while last * hop < end and last - first < model.window_frames and self._margins.is_known(placement, last):
            here = placement.part_at(last)
            if here is None or (here.first_seq, here.full_seq) != (part.first_seq, part.full_seq):
                break
            if self._margins.phase(placement, last) != self._margins.phase(placement, first):
                break
            if self._margins.end(placement, last) - low > model.window_frames + 2 * model.margin_frames:
                break
            last += 1
        if last == first:
            return None
        frames = range(low, self._margins.end(placement, last - 1))
        end = min(end, last * hop)
        window = DecodeWindow(
            index=self._num_windows,
            epoch=self.epoch,
            # [last + margin - low, C]
            values=model.heard(
                placement.canvas.moods,
                placement.muted,
                placement.canvas.rows(map(placement.canvas_frame_at, frames)),
            ),
            start_frame=low,
            trim_begin=start - low * hop,
            trim_end=end - low * hop,
            start_sample=start,
            first_seq=part.first_seq,
            full_seq=part.full_seq,
            is_replacing=is_replacing,
            is_after_underrun=self._has_underrun and not is_replacing,
            is_first=not self._has_begun,
        )
        self._request(window, placement)
        return window

    def _request(self, window: DecodeWindow, placement: Placement) -> None:
        self._num_windows += 1
        self._ledger = _overlaid(
            self._ledger, _Sent(window.start_sample, window.end_sample, placement, window.full_seq)
        )
        self._pending[window.index] = _Pending(window, list(self._applied(window)), self._playhead.clock.now_s)

    def _applied(self, window: DecodeWindow) -> Iterator[Applied]:
        """What to report once a window's audio is sent."""
        reported, seq = self._reported, self._ledger[-1].full_seq
        if window.first_seq > reported.first_seq:
            reported.first_seq = window.first_seq
            reported.first_samples[window.first_seq] = window.start_sample
            if window.first_seq > seq:
                yield Applied(seq=window.first_seq, tick=self.tick, first_sample=window.start_sample)
        if seq > reported.full_seq:
            reported.full_seq = seq
            full_sample = self._ledger[-1].start
            for sent in reversed(self._ledger):
                if sent.full_seq < seq:
                    break
                full_sample = sent.start
            first_sample = min((at for of, at in reported.first_samples.items() if of >= seq), default=full_sample)
            reported.first_samples = {of: at for of, at in reported.first_samples.items() if of > seq}
            yield Applied(seq=seq, tick=self.tick, first_sample=first_sample, full_sample=full_sample)

    def _num_due(self, pending: _Pending) -> int:
        """How many samples of a decoded window the client wants now, in whole chunks; the rest can wait, and may be
        replaced before it is sent.
        """
        window = pending.window
        if pending.pcm is None or window.is_replacing:
            return window.num_samples
        chunk = round(CHUNK_S * self._model.sample_rate_hz)
        wanted = self._playhead.wanted_until - pending.next_sample
        return min(pending.num_sent + -(-max(wanted, 0) // chunk) * chunk, window.num_samples)

    def _chunk(self, pending: _Pending, end: int) -> Iterator[AudioChunk | TrackedNotes]:
        """The chunk of a decoded window up to its sample `end`, only the part after the playhead; first its notes."""
        window, pcm, start = pending.window, pending.pcm, pending.num_sent
        if not start and not window.is_replacing:
            self._waited_s = self._playhead.clock.now_s - pending.requested_s
        pending.num_sent = end
        late = max(start, self._playhead.position + window.is_replacing - window.start_sample)
        self._playhead.send(window.start_sample + end)
        self._playhead.underruns += pcm is None and not window.is_replacing and late < end
        if pcm is None or late >= end:
            return
        is_late = late > start and not window.is_replacing  # the client had nothing from its start on
        if self._notes is not None:
            yield self._notes.told(window, window.start_sample + late, window.start_sample + end)
        yield AudioChunk(
            epoch=window.epoch,
            start_sample=window.start_sample + late,
            pcm=pcm[late:end],  # [end - late, channels]
            first_seq=window.first_seq,
            full_seq=window.full_seq,
            is_replacing=window.is_replacing,
            is_after_underrun=is_late or (window.is_after_underrun and not start),
        )


def _overlaid(ledger: list[_Sent], new: _Sent) -> list[_Sent]:
    """The ledger with a range in place of what was there."""
    before = [replace(sent, end=min(sent.end, new.start)) for sent in ledger if sent.start < new.start]
    after = [replace(sent, start=max(sent.start, new.end)) for sent in ledger if sent.end > new.end]
    return [*before, new, *after]
