"""The notes of the latents that a session plays, told with the audio that they sound in."""

from __future__ import annotations

from runtime.config.codec import Latents
from runtime.config.notes import NotesSpec
from runtime.live.playback.playhead import Playhead
from runtime.live.protocol.actions import DecodeWindow
from runtime.live.protocol.server_messages import LiveNote, TrackedNotes
from runtime.music.tracker import FrameNote, NoteTracker


class ToldNotes:
    """Tracks notes over the play axis, chunk by chunk, as they are sent; what replaces audio replaces its notes.

    silence `[C]`. A frame belongs to the chunk that its first sample is in. Where audio was left out, the notes before
    it have ended, and what sounds behind it begins there.
    """

    def __init__(self, spec: NotesSpec, silence: Latents, hop_samples: int, playhead: Playhead) -> None:
        self._spec, self._silence, self._hop, self._playhead = spec, silence, hop_samples, playhead
        # By play frame the tracker as it is before it, for all that may still be replaced.
        self._before: dict[int, NoteTracker] = {}

    def clear(self) -> None:
        """A client has connected that knows nothing of what was sent before."""
        self._before.clear()

    def told(self, window: DecodeWindow, start_sample: int, end_sample: int) -> TrackedNotes:
        """The notes of a chunk of a window, from sample to sample of the play axis."""
        first, last = (-(-sample // self._hop) for sample in (start_sample, end_sample))
        rows = window.values[first - window.start_frame :]  # [n, C], from frame `first` on
        num_frames = last - first
        tracker = self._before.get(first) or NoteTracker(self._spec, self._silence, first)
        found: list[FrameNote] = []
        # Those behind `last` stay: what follows may have been told before what it replaces.
        self._before = {frame: kept for frame, kept in self._before.items() if frame >= self._oldest}
        for row in range(num_frames):
            self._before[first + row] = tracker.copy()
            found += tracker.track(rows[row : row + 1])
        self._before[last] = tracker.copy()
        # What begins here is known for certain only some frames later, which the window has for the codec.
        found += [*tracker.track(rows[num_frames:]), *tracker.sounding()]
        sounding = [note for note in found if note.start_frame < last and note.end_frame > first]
        notes = sorted((self._note(note, last) for note in sounding), key=lambda note: (note[3], note[0], note[1]))
        is_new = [note[3] >= first * self._hop for note in notes]
        return TrackedNotes(
            start_sample=start_sample,
            end_sample=end_sample,
            replaces=window.is_replacing,
            notes=[note for note, begins in zip(notes, is_new, strict=True) if begins],
            open=[note for note, begins in zip(notes, is_new, strict=True) if not begins],
        )

    @property
    def _oldest(self) -> int:
        return self._playhead.position // self._hop

    def _note(self, note: FrameNote, last: int) -> LiveNote:
        samples = note.num_frames * self._hop if note.end_frame <= last else None
        return (note.layer, note.key, note.velocity, note.start_frame * self._hop, samples)
