"""Music from a text into a file, while it is generated, with Python alone: python generate.py "calm piano" calm.wav

TICKRT_URL and TICKRT_API_KEY name the server and its key.
"""

from __future__ import annotations

import json
import os
import sys
from http.client import HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

URL = os.environ.get("TICKRT_URL", "http://localhost:8000")
KEY = os.environ.get("TICKRT_API_KEY", "none")


def generate(**options: Any) -> HTTPResponse:
    """The answer of the server, whose body is read while it is generated. Raises RuntimeError with what it says."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = Request(f"{URL}/v1/audio/generations", json.dumps(options).encode(), headers)
    try:
        answer: HTTPResponse = urlopen(request, timeout=120)
        return answer
    except HTTPError as error:
        problem = json.load(error)  # RFC 9457
        raise RuntimeError(f"{problem['detail']} {problem.get('fix', '')}".strip()) from None


def main(prompt: str, path: str) -> None:
    """Write one generation to a file whose suffix is its format."""
    answer = generate(prompt=prompt, seconds=8, response_format=path.rpartition(".")[2])
    with answer, open(path, "wb") as file:
        while chunk := answer.read(65536):
            file.write(chunk)
    print(f"{path}: seed {answer.headers['X-Seed']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
