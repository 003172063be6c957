"""ElevenLabs Music: its SDK."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

router = APIRouter(include_in_schema=False)


def error_body(problem: dict[str, Any]) -> dict[str, Any]:
    """A problem document as ElevenLabs' SDK shows errors: a status in words, and a message."""
    message = problem["detail"] + (f" ({problem['fix']})" if "fix" in problem else "")
    return {"detail": {"status": problem["code"], "message": message}}


ERROR_SHAPES = dict.fromkeys(("/v1/music", "/v1/music/", "/v1/sound-generation"), error_body)
