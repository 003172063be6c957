"""ElevenLabs Music: its SDK."""

from __future__ import annotations

from fastapi import APIRouter

from server.compat.errors import ErrorBody

router = APIRouter(include_in_schema=False)
ERROR_SHAPES: dict[str, ErrorBody] = {}
