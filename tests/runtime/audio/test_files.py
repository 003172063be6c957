"""Formats by suffix, and files that are complete or absent."""

from pathlib import Path

import pytest

from runtime.audio.formats import complete_file, format_of
from runtime.base.errors import FileError, RequestError


def test_the_format_is_that_of_the_suffix_unless_it_is_given() -> None:
    names = {"a.wav": "wav", "a.OPUS": "ogg", "a.ogg": "ogg", "a.raw": "pcm", "a.safetensors": "latents"}
    assert {name: format_of(Path(name)) for name in names} == names
    assert format_of(Path("a.wav"), "flac") == "flac"


@pytest.mark.parametrize(("name", "format"), [("a.mp4", None), ("a", None), ("a.wav", "mp4")])
def test_an_unknown_format_is_refused(name: str, format: str | None) -> None:
    with pytest.raises(RequestError, match=r"\.wav|wav, pcm"):
        format_of(Path(name), format)


def test_a_file_is_replaced_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_text("old")
    with complete_file(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    with pytest.raises(TypeError), complete_file(path) as file:
        file.write("half")  # type: ignore[arg-type]
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_a_file_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "a.wav"):
        with pytest.raises(FileError, match=str(tmp_path)), complete_file(path):
            pass
