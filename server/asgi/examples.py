"""The groups of the OpenAPI document, and its examples by operation: parameters, bodies and answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SESSION, SOURCE = "3f9c2a51d07b8e64", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0bb822cd15d6c15b0f00a8"
TASK = "71d9f417-a1ab-4eba-98fa-4f16c5971712"
EMPTY_DOCUMENT = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {}}

CLIENTS = {"description": "Other people's clients", "url": "docs/clients"}
PROTOCOL = {"description": "The protocol of WS /v1/live", "url": "docs/live"}
# What the groups of operations are; the addresses are those of server/live/page_routes.py.
TAGS: list[dict[str, Any]] = [
    {"name": "generations", "description": "Music and sound from a text, audio, or both."},
    {"name": "sources", "description": "Audio that is uploaded once and used by generations and sessions."},
    {"name": "models", "description": "The model, its options and its adapters."},
    {
        "name": "live",
        "description": "Sessions that play without an end. They are played over the WebSocket `/v1/live`.",
        "externalDocs": PROTOCOL,
    },
    {"name": "operation", "description": "Health, metrics, and what needs the admin key."},
    {
        "name": "ElevenLabs",
        "description": "ElevenLabs' music and sound effects: its SDK plays this server's model.",
        "externalDocs": CLIENTS,
    },
    {
        "name": "ACE-Step",
        "description": "ACE-Step 1.5's REST API: its DAW, its VST and scripts.",
        "externalDocs": CLIENTS,
    },
]


@dataclass(frozen=True)
class Example:
    """What one operation is asked, and what it answers. answer: of its first status 2xx; None: none, or bytes."""

    body: Any = None
    answer: Any = None
    parameters: Mapping[str, Any] = field(default_factory=dict)


def _envelope(data: Any) -> dict[str, Any]:
    return {"data": data, "code": 200, "error": None, "timestamp": 1795835830489, "extra": None}


_SOURCE_CARD = {"id": SOURCE, "object": "source", "kind": "audio", "bytes": 1920044, "seconds": 10.0}
_SESSION_CARD = {"id": SESSION, "object": "live.session", "connected": True, "state": None}
_ADAPTERS = {
    "object": "list",
    "data": [
        {
            "id": "music-box",
            "object": "adapter",
            "rank": 8,
            "modules": ["layers.0.cross_attn.to_k", "layers.0.cross_attn.to_q"],
            "base_model": "tickrt-demo",
            "trigger_words": [],
        }
    ],
    "max_rank": 16,
    "merged": [],
}
_MODEL = {
    "id": "tickrt-demo",
    "object": "model",
    "created": 1795833597,
    "owned_by": "tickrt",
    "version": "2.0.0",
    "license": "Apache-2.0",
    "description": "A small music model of ACE-Step's architecture.",
    "target": "cpu",
    "sample_rate_hz": 48000,
    "audio_channels": 2,
    "latent_channels": 64,
    "frame_rate_hz": 25.0,
    "canvas_seconds": 10.24,
    "max_seconds": 600.0,
    "takes_text": True,
    "vocabulary": ["techno", "drums", "bass"],
    "takes_source": True,
    "slots": 8,
    "queue": 32,
    "response_formats": ["wav", "flac", "mp3", "latents"],
    "defaults": {
        "steps": 10,
        "live_steps": 6,
        "shift": 3.0,
        "schedule": None,
        "schedules": {
            "6": [1.0, 0.9554, 0.8863, 0.7652, 0.5797, 0.3865],
            "8": [1.0, 0.9744, 0.9381, 0.8855, 0.7935, 0.6753, 0.5176, 0.3311],
            "10": [1.0, 0.9816, 0.9564, 0.9154, 0.8579, 0.789, 0.6893, 0.5419, 0.3817, 0.2527],
        },
        "solver": "ab2",
        "noise_layout": "time_channels",
        "guidance": 3.0,
        "guidance_reason": "",
        "cfg_interval_start": 0.0,
        "cfg_interval_end": 0.5,
        "denoise": 1.0,
        "blend_power": 8,
        "blend_energy_below": 0.8,
        "dcw": {"mode": "double", "low": 0.0, "high": 0.0},
    },
    "engines": {"decoder": {"target": "cpu", "sha256": SOURCE}},
}
_INVENTORY = {
    "models": [
        {
            "name": "tickrt-demo",
            "is_default": True,
            "is_loaded": True,
            "supported_task_types": ["text2music", "cover", "repaint"],
        }
    ],
    "default_model": "tickrt-demo",
    "lm_models": [],
    "loaded_lm_model": None,
    "llm_initialized": False,
}
_RESULT = {
    "file": f"/v1/audio?path=%2F{TASK}%2F0.wav",
    "wave": "",
    "status": 1,
    "create_time": 1795835830,
    "env": "tickrt",
    "prompt": "techno",
    "lyrics": "",
    "metas": {"bpm": 138, "duration": 8.0, "genres": "", "keyscale": "A minor", "timesignature": "4"},
    "generation_info": "text2music, 16 steps; plays: drums, bass, pads; techno; 138 bpm",
    "lm_model": "",
    "dit_model": "tickrt-demo",
    "seed_value": "1",
    "progress": 1.0,
    "stage": "succeeded",
    "error": None,
}
_MUSIC = {"prompt": "techno, 120 bpm, drums, bass", "music_length_ms": 12000, "seed": 1}
_PLAN = {
    "composition_plan": {
        "positive_global_styles": ["techno", "120 bpm"],
        "negative_global_styles": [],
        "sections": [
            {
                "section_name": "Intro",
                "positive_local_styles": ["pads"],
                "negative_local_styles": [],
                "duration_ms": 4000,
                "lines": [],
            },
            {
                "section_name": "Drop",
                "positive_local_styles": ["drums", "bass"],
                "negative_local_styles": [],
                "duration_ms": 8000,
                "lines": [],
            },
        ],
    }
}

# A generation's are in openapi.py, beside its body.
EXAMPLES: Mapping[str, Example] = {
    "create_generation": Example(),
    "create_source": Example(answer=_SOURCE_CARD),
    "list_sources": Example(answer={"object": "list", "data": [_SOURCE_CARD]}),
    "get_source": Example(answer=_SOURCE_CARD, parameters={"source_id": SOURCE}),
    "delete_source": Example(parameters={"source_id": SOURCE}),
    "list_models": Example(answer={"object": "list", "data": [_MODEL]}),
    "get_model": Example(answer=_MODEL, parameters={"model_id": "tickrt-demo"}),
    "get_schema": Example(answer=EMPTY_DOCUMENT),
    "list_adapters": Example(answer=_ADAPTERS),
    "merge_adapters": Example(
        body={"adapters": [{"id": "music-box", "strength": 0.8}]},
        answer={**_ADAPTERS, "merged": [{"id": "music-box", "strength": 0.8}]},
    ),
    "get_live": Example(answer={"status": "live", "tick_age_s": 0.012}),
    "get_ready": Example(
        answer={
            "status": "ready",
            "model": "tickrt-demo",
            "slots_active": 2,
            "slots_capacity": 8,
            "queue_depth": 0,
            "live_sessions": 1,
        }
    ),
    "get_metrics": Example(answer="tickrt_ready 1.0\n"),
    "drain": Example(answer={"status": "draining", "live_sessions": 1}),
    "record_profile": Example(
        parameters={"ticks": 64, "wait_s": 10.0},
        answer={"traceEvents": [{"name": "tick", "ph": "X", "ts": 0, "dur": 41000, "pid": 1, "tid": 1}]},
    ),
    "list_sessions": Example(answer={"object": "list", "data": [_SESSION_CARD]}),
    "get_session": Example(answer={**_SESSION_CARD, "plan": None}, parameters={"session": SESSION}),
    "get_stems": Example(parameters={"session": SESSION}),
    "end_session": Example(parameters={"session": SESSION}),
    "leave_session": Example(parameters={"session": SESSION, "epoch": 1}),
    "get_live_schema": Example(answer={"client": EMPTY_DOCUMENT, "server": EMPTY_DOCUMENT}),
    # ElevenLabs'
    "stream_music": Example(body=_MUSIC, parameters={"output_format": "mp3_44100_128"}),
    "compose_music": Example(body=_PLAN, parameters={"output_format": "wav_48000"}),
    "compose_detailed": Example(body=_MUSIC, parameters={"output_format": "auto"}),
    "generate_sound": Example(
        body={"text": "bells", "duration_seconds": 4, "prompt_influence": 0.3},
        parameters={"output_format": "wav_48000"},
    ),
    # ACE-Step's
    "get_health": Example(
        answer=_envelope(
            {
                "status": "ok",
                "service": "TickRT",
                "models_initialized": True,
                "llm_initialized": False,
                "loaded_model": "tickrt-demo",
                "loaded_lm_model": None,
            }
        )
    ),
    "get_models": Example(answer=_envelope(_INVENTORY)),
    "init_model": Example(
        body={"model": "tickrt-demo"},
        answer=_envelope({"message": "tickrt-demo is loaded", "loaded_model": "tickrt-demo", **_INVENTORY}),
    ),
    "get_stats": Example(
        answer=_envelope(
            {
                "jobs": {"total": 3, "queued": 0, "running": 1, "succeeded": 2, "failed": 0},
                "queue_size": 1,
                "queue_maxsize": 40,
                "avg_job_seconds": 2.5,
            }
        )
    ),
    "release_task": Example(
        body={
            "prompt": "techno, drums, bass",
            "bpm": 120,
            "key_scale": "C major",
            "audio_duration": 8,
            "batch_size": 1,
            "use_random_seed": False,
            "seed": 1,
            "audio_format": "wav",
        },
        answer=_envelope({"task_id": TASK, "status": "queued", "queue_position": 1}),
    ),
    "query_result": Example(
        body={"task_id_list": [TASK]},
        answer=_envelope([{"task_id": TASK, "result": json.dumps([_RESULT]), "status": 1, "progress_text": ""}]),
    ),
    "get_audio": Example(parameters={"path": f"/{TASK}/0.wav"}),
    "get_lora_status": Example(
        answer=_envelope(
            {"lora_loaded": False, "use_lora": False, "lora_scale": 1.0, "active_adapter": None, "adapters": []}
        )
    ),
}


def describe(document: dict[str, Any]) -> None:
    """Add groups and links; give every operation its example, and the first sentence of its description as summary."""
    document["tags"] = TAGS
    document["externalDocs"] = PROTOCOL
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        example = EXAMPLES[operation["operationId"]]
        sentence = operation["description"].partition("\n\n")[0].partition(". ")[0].rstrip(".")
        operation["summary"] = sentence.replace("`", "")
        for parameter in operation.get("parameters", ()):
            if parameter["name"] in example.parameters:
                parameter["example"] = example.parameters[parameter["name"]]
        if example.body is not None:
            operation["requestBody"]["content"]["application/json"]["example"] = example.body
        answers = [found for status, found in operation["responses"].items() if status.startswith("2")]
        for answer in answers if example.answer is not None else ():
            for content in answer.get("content", {}).values():
                content["example"] = example.answer
