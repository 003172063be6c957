"""What bodies of ACE-Step's API may have, for the API documentation: it takes more names and forms than these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from server.protocols.acestep.fields import FORM

_KEY = {"ai_token": {"type": "string", "description": "The API key, where the server needs one and no header has it."}}
INIT: Mapping[str, Any] = {
    "model": {"type": "string", "description": "The model; ACE-Step's own names mean the one that runs."},
    "init_llm": {"type": "boolean", "description": "true is refused: there is no language model."},
}
QUERY: Mapping[str, Any] = {
    "task_id_list": {
        "type": "array",
        "items": {"type": "string"},
        "maxItems": 100,
        "description": "Ids of tasks, as POST /release_task answers; in a form as a text of JSON.",
    },
    **_KEY,
}
TASK: Mapping[str, Any] = {
    "prompt": {"type": "string", "description": "What is played; also `caption`."},
    "lyrics": {"type": "string", "description": "What is sung, where the model sings; [inst] is nothing."},
    "bpm": {"type": "integer", "description": "Tempo in beats per minute."},
    "key_scale": {"type": "string", "description": "The key, such as C major, Am or F# minor."},
    "time_signature": {"type": "string", "description": "2, 3, 4 or 6 (2/4, 3/4, 4/4, 6/8)."},
    "vocal_language": {"type": "string", "description": "The language of the lyrics."},
    "audio_duration": {"type": "number", "description": "Length in seconds; of a source that is used, its own."},
    "task_type": {"type": "string", "description": "One that /v1/model_inventory has. Default: text2music."},
    "batch_size": {"type": "integer", "minimum": 1, "maximum": 8, "description": "How many are made, each by a seed."},
    "use_random_seed": {"type": "boolean", "description": "Whether seeds are drawn. Default: true."},
    "seed": {"type": ["integer", "string"], "description": "A seed, or several with commas between them."},
    "inference_steps": {"type": "integer", "description": "Steps of a generation. Default: the model's."},
    "guidance_scale": {"type": "number", "description": "Guidance. Default, as 7.0: the model's."},
    "shift": {"type": "number", "description": "Shift of the timesteps. Default, as 3.0: the model's."},
    "infer_method": {"type": "string", "description": "The solver, such as ode or sde."},
    "audio_format": {"type": "string", "enum": ["mp3", "wav", "flac", "opus", "ogg"], "description": "Of the file."},
    "audio_cover_strength": {"type": "number", "description": "How much a cover keeps of its source; 1 keeps most."},
    "repainting_start": {"type": "number", "description": "Where a repaint begins, in seconds."},
    "repainting_end": {"type": "number", "description": "Where it ends. Default: with the source."},
    "model": {"type": "string", "description": "The model; ACE-Step's own names mean the one that runs."},
    **_KEY,
}
_FILE = {"type": "string", "format": "binary", "description": "An audio file: the source, or whose timbre is taken."}


def fields_body(properties: Mapping[str, Any], files: Iterable[str] = ()) -> dict[str, Any]:
    """The OpenAPI entry of a request body with these members: JSON, a form, or a form with files."""
    schema = {"type": "object", "properties": dict(properties)}
    parts = {"type": "object", "properties": {**properties, **dict.fromkeys(files, _FILE)}}
    content = {name: {"schema": schema} for name in ("application/json", FORM)}
    return {"requestBody": {"required": True, "content": {**content, "multipart/form-data": {"schema": parts}}}}
