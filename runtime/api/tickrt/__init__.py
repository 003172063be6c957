"""TickRT in Python: open a model, generate audio, stream it, or play it live.

    import tickrt

    with tickrt.open("demo") as model:
        audio = model.generate("calm melody in D minor", seconds=30, seed=1)
        audio.save("calm.flac")
        with model.live("calm melody", mode="extend") as live:
            for chunk in live: ...

Every option is one of the HTTP body's and the command line's: see help(tickrt.Arguments).
"""

from runtime.base.errors import (
    BuildError,
    ConfigError,
    DrainingError,
    EngineError,
    NonFiniteError,
    QueueFullError,
    RequestError,
    ShapeError,
    TickError,
)
from runtime.engines.adapters import Adapter
from runtime.live.playback.note_stream import NoteEvent
from runtime.music.score import Note
from runtime.requests.prompt_words import PromptMeaning, PromptWords
from tickrt.audio import Audio
from tickrt.live import Live
from tickrt.model import Model, open
from tickrt.options import (
    AdapterOptions,
    Adapters,
    Arguments,
    Controls,
    Curve,
    DcwOptions,
    Generation,
    NoteOptions,
    Notes,
    Options,
    Prompt,
    Source,
    Span,
    WeightedPrompt,
)
from tickrt.remote import TickRT

__all__ = [
    "Adapter",
    "AdapterOptions",
    "Adapters",
    "Arguments",
    "Audio",
    "BuildError",
    "ConfigError",
    "Controls",
    "Curve",
    "DcwOptions",
    "DrainingError",
    "EngineError",
    "Generation",
    "Live",
    "Model",
    "NonFiniteError",
    "Note",
    "NoteEvent",
    "NoteOptions",
    "Notes",
    "Options",
    "Prompt",
    "PromptMeaning",
    "PromptWords",
    "QueueFullError",
    "RequestError",
    "ShapeError",
    "Source",
    "Span",
    "TickError",
    "TickRT",
    "WeightedPrompt",
    "open",
]
