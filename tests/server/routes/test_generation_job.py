"""What a generation's response says in its headers, and how far ahead of its playback it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from server.asgi.openapi import GenerationBody
from server.asgi.request_body import Upload
from server.routes import generation_job
from server.routes.generation_job import GenerationJob, words_header


def test_unknown_words_fit_into_a_header() -> None:
    words = ["b\u00f6se", "a, b", "x" * 30, *("w" for _ in range(20))]
    assert words_header(words) == ", ".join(["b%C3%B6se", "a%2C b", "x" * 20, *"wwwwwww"])


@pytest.mark.parametrize(("stream", "format_", "is_streamed"), [(True, "wav", True), (True, "latents", False)])
def test_a_stream_is_ahead_by_what_it_has_not_played(
    monkeypatch: pytest.MonkeyPatch, stream: bool, format_: str, is_streamed: bool
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(generation_job.time, "monotonic", lambda: now_s[0])
    seen: list[str] = []
    metric: Any = SimpleNamespace(observe=lambda seconds: seen.append(f"{seconds:g}"))
    metrics = SimpleNamespace(time_to_first_audio=metric, chunk_interval=metric)
    tracker = SimpleNamespace(discard=lambda id_: seen.append(id_))
    service: Any = SimpleNamespace(metrics=metrics, first_audio_tracker=tracker)
    nothing: Any = None
    body = GenerationBody(prompt="a", stream=stream, response_format=format_)
    job = GenerationJob(service, nothing, body, Upload({}), "", nothing, "id", started_s=99.0)
    assert job.is_streamed == is_streamed
    assert job.lead_s() == 0.0
    job.record_sent()
    job.sent_audio_s, now_s[0] = 2.0, 100.5
    job.record_sent()
    now_s[0] = 101.5
    job.record_sent()
    assert job.lead_s() == 0.5
    assert seen == ["1", "id", "0.5", "1"]
