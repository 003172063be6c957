"""What ACE-Step's own clients send and read: its DAW and its VST."""

from __future__ import annotations

import io
import json
import time
import wave
from typing import Any

import httpx
import numpy as np
from helpers.http_harness import TIMEOUT_S

# The parameters that the DAW sends with every task, as its forms carry them: String(value).
DAW_ALWAYS = {
    "lyrics": "", "inference_steps": "8", "guidance_scale": "7", "shift": "3", "batch_size": "1", "audio_format": "wav",
    "thinking": "false", "model": "acestep-v15-base",
}  # fmt: skip
DAW_TASKS: dict[str, dict[str, str]] = {
    "text2music": {
        "prompt": "calm melody", "audio_duration": "1.28", "bpm": "120", "key_scale": "C Major",
        "time_signature": "4", "use_random_seed": "true", "use_cot_caption": "false", "vocal_language": "unknown",
    },
    "cover": {"caption": "slow strings", "audio_cover_strength": "0.5", "audio_duration": "1.28"},
    "repaint": {
        "prompt": "drums", "global_caption": "a song", "repainting_start": "0.32", "repainting_end": "0.64",
        "instruction": "Repaint the mask area based on the given conditions:", "audio_duration": "1.28",
        "repaint_mode": "balanced", "repaint_strength": "0.5",
    },
}  # fmt: skip


class AceStepClient:
    """Sends tasks and polls for them as the DAW does; `httpx` is a client of the server."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def release(self, **request: Any) -> str:
        """Send /release_task; the task's id."""
        data = wrapped(self.http.post("/release_task", **request))
        assert data["status"] == "queued"
        assert data["queue_position"] >= 1
        return str(data["task_id"])

    def daw(self, task: str, source: bytes, **more: Any) -> list[dict[str, Any]]:
        """The results of a task that the DAW sends with the upload `src_audio.wav`."""
        fields = {"task_type": task, **DAW_ALWAYS, **DAW_TASKS.get(task, {}), **more}
        return self.wait(self.release(data=fields, files={"src_audio": ("src_audio.wav", source, "audio/wav")}))

    def query(self, *task_ids: str) -> list[dict[str, Any]]:
        """/query_result."""
        found: list[dict[str, Any]] = wrapped(self.http.post("/query_result", json={"task_id_list": list(task_ids)}))
        return found

    def wait(self, task_id: str, status: int = 1) -> list[dict[str, Any]]:
        """The results of a task, which are a text of JSON, once it has ended with `status`."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while not (entry := self.query(task_id)[0])["status"]:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        results: list[dict[str, Any]] = json.loads(entry["result"])
        assert entry["status"] == status, results
        return results

    def audio(self, result: dict[str, Any]) -> bytes:
        """The audio of a result, by its address."""
        response = self.http.get(result["file"])
        assert response.status_code == 200, response.text
        return response.content


def wrapped(response: httpx.Response) -> Any:
    """The data of an answer, as the VST checks it."""
    envelope = response.json()
    assert (response.status_code, envelope["code"], envelope["error"]) == (200, 200, None), envelope
    assert set(envelope) == {"data", "code", "error", "timestamp", "extra"}
    return envelope["data"]


def refusal(response: httpx.Response, status: int) -> str:
    """The text of an error, as the VST and the DAW read it."""
    envelope = response.json()
    assert (response.status_code, envelope["code"], envelope["data"]) == (status, status, None), envelope
    assert response.headers["content-type"] == "application/json"
    assert envelope["error"] == envelope["detail"] != ""
    return str(envelope["error"])


def wav_file(seconds: float, level: float = 0.3, rate_hz: int = 8000) -> bytes:
    """Stereo noise; silence at level 0."""
    random = np.random.default_rng(3)
    samples = level * random.uniform(-1, 1, (round(seconds * rate_hz), 2))
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(2)
        writer.setsampwidth(2)
        writer.setframerate(rate_hz)
        writer.writeframes((32767 * samples).astype("<i2").tobytes())
    return file.getvalue()
