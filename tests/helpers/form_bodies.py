"""Hypothesis strategies of requests with forms: their boundaries, parts, names, headers, contents."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from helpers.midi_files import NOTE, midi_file, midi_files
from hypothesis import strategies as st
from safetensors.numpy import save

from runtime.audio.encoding import AudioWriter
from runtime.requests.options import GenerationOptions

PATHS = ("/v1/audio/generations", "/v1/sources", "/release_task", "/query_result", "/v1/init")


@dataclass(frozen=True)
class FormRequest:
    """One POST of a form."""

    path: str
    content_type: bytes
    body: bytes

    def bytes(self) -> bytes:
        """As it is sent; the connection ends with the answer."""
        lines = (
            f"POST {self.path} HTTP/1.1\r\nhost: localhost\r\nconnection: close".encode(),
            b"content-length: %d\r\ncontent-type: %b" % (len(self.body), self.content_type),
        )
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.body


def _wav() -> bytes:
    writer = AudioWriter("wav", 8_000, 1, total_samples=800)
    return writer.write(np.sin(np.arange(800, dtype=np.float32))[:, None]) + writer.close()


SHORT = b'{"prompt": "a", "seconds": 0.5, "steps": 1}'
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.just(10**400) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_OPTIONS = st.dictionaries(
    st.sampled_from(sorted(GenerationOptions.model_fields)) | st.text(max_size=8), _JSON, max_size=3
).map(lambda values: {"prompt": "a", "seconds": 0.5, "steps": 1, **values})
_REQUESTS = (
    _OPTIONS.map(lambda values: json.dumps(values).encode("utf-8", "surrogatepass"))
    | st.integers(0, 5000).map(lambda n: b'{"prompt": ' + b"[" * n)
    | st.sampled_from([b"", b"null", b"{", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\xff\xfe{}", b'{"prompt": "\\ud800"}'])
)
_FILES = st.sampled_from([_wav(), save({"latents": np.zeros((8, 8), np.float32)})])
_CONTENTS = st.one_of(
    _REQUESTS,
    midi_files,
    _FILES,
    _FILES.flatmap(lambda data: st.integers(0, len(data)).map(lambda end: data[:end])),
    st.binary(max_size=60),
    st.builds(lambda piece, n: piece * n, st.binary(min_size=1, max_size=6), st.integers(1, 20_000)),
)
_NAMES = st.sampled_from(
    [
        "request", "source", "timbre", "structure", "condition", "notes", "prompt", "lyrics", "bpm", "task_id_list",
        "src_audio", "model", "ai_token", "audio_duration", "", 'a"b', "é",
    ]
)  # fmt: skip
_HEADERS = st.sampled_from(
    [
        *[b""] * 20, b"content-type: application/json\r\n", b"content-type: audio/midi\r\n", b"content-type:\r\n",
        b"content-transfer-encoding: base64\r\n", b"x: " + b"y" * 5000 + b"\r\n", b": \r\n", b"x\xff: \xfe\r\n",
        b"x y\r\n",
    ]
)  # fmt: skip
_FILE_NAMES = st.none() | st.sampled_from(["a.mid", "", "../../etc/passwd", "a\x01b", "é" * 300])


def _part(name: str, file: str | None, headers: bytes, content: bytes) -> bytes:
    shown = "" if file is None else f'; filename="{file}"'
    return f'content-disposition: form-data; name="{name}"{shown}\r\n'.encode() + headers + b"\r\n" + content


def _generation_parts(request: bytes, notes: bytes) -> list[bytes]:
    return [_part("request", None, b"", request), _part("notes", "a.mid", b"", notes)]


def generation_form(notes: bytes) -> FormRequest:
    """A short generation of a MIDI file."""
    body = b"".join(b"--x\r\n" + part + b"\r\n" for part in _generation_parts(SHORT, notes))
    return FormRequest(PATHS[0], b"multipart/form-data; boundary=x", body + b"--x--\r\n")


# Every value as often as another: Hypothesis draws numbers at the ends of a range more often.
_CHANCES = st.randoms(use_true_random=False).map(lambda drawn: drawn.random())
# What goes on behind the form more often than not.
_GENERATIONS = st.tuples(
    _CHANCES.flatmap(lambda chance: st.just(SHORT) if chance < 0.7 else _REQUESTS),
    _CHANCES.flatmap(lambda chance: st.just(midi_file(NOTE * 9)) if chance < 0.3 else midi_files),
).map(lambda both: _generation_parts(*both))
_PARTS = st.lists(st.builds(_part, _NAMES, _FILE_NAMES, _HEADERS, _CONTENTS), max_size=7)
_BOUNDARIES = st.sampled_from([b"x", b"-" * 70, b"a b", b"y" * 5000, b""])
_TYPES = st.sampled_from(
    [
        b'multipart/form-data; boundary="%b"', b"multipart/form-data", b"multipart/form-data; boundary=other%b",
        b"multipart/form-data; charset=utf-7; boundary=%b", b"multipart/form-data; charset=none; boundary=%b",
        b"multipart/form-data; boundary=\xff%b", b"application/x-www-form-urlencoded",
    ]
)  # fmt: skip
_HEADS = _CHANCES.flatmap(
    lambda chance: (
        st.just((b"x", b"multipart/form-data; boundary=%b")) if chance < 0.8 else st.tuples(_BOUNDARIES, _TYPES)
    )
)


@st.composite
def form_requests(draw: st.DrawFn) -> FormRequest:
    """A form, whole or cut off, with bytes replaced here and there."""
    chance, (boundary, template) = draw(_CHANCES), draw(_HEADS)
    parts = draw(_GENERATIONS if chance < 0.6 else _PARTS)
    begin = b"--" + boundary
    body = bytearray(b"".join(begin + b"\r\n" + part + b"\r\n" for part in parts) + begin + b"--\r\n")
    if chance % 0.1 < 0.01:
        at, length = draw(st.integers(0, len(body))), draw(st.integers(0, 40))
        body[at : at + length] = draw(st.binary(max_size=20))
    elif chance % 0.1 < 0.02:
        del body[draw(st.integers(0, len(body))) :]
    path = PATHS[0] if chance < 0.6 else draw(st.sampled_from(PATHS))
    return FormRequest(path, template.replace(b"%b", boundary), bytes(body))
