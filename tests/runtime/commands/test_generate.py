"""tickrt-generate end to end: complete files or none, exit statuses, messages with a fix, interrupts."""

import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mido
import numpy as np
import pytest
import soundfile
from click.testing import Result
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.factories import TinySpec, tiny_deployment
from helpers.odd_audio import DAMAGED
from helpers.paths import ROOT
from helpers.reads import bundle_reads
from helpers.tiny_structure import FRAMES_PER_CODE
from helpers.tones import tone
from typer.testing import CliRunner

from runtime.audio.encoding import AudioWriter
from runtime.audio.formats import read_latents
from runtime.audio.metadata import read_metadata
from runtime.base.errors import NonFiniteError
from runtime.commands.generate import app, tickrt_generate
from runtime.commands.terminal import EXIT_ENGINE, EXIT_FAILED, EXIT_FILE, EXIT_INTERRUPTED, EXIT_INVALID
from runtime.config import deployment
from runtime.config.bundle import load_bundle

GENERATE = [sys.executable, "-m", "runtime.commands.generate"]
SPEC = TinySpec()
RATE_HZ = SPEC.sample_rate_hz
Generate = Callable[..., Result]


@pytest.fixture
def generate_by(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Generate]:
    """`generate_by(notes=True)("--out", "a.wav", ...)` runs the command with such a model, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def of(**changes: Any) -> Generate:
        config = str(built(**changes).path)
        return lambda *arguments: CliRunner().invoke(app, [config, *map(str, arguments)])

    return of


@pytest.fixture
def generate(generate_by: Callable[..., Generate]) -> Generate:
    return generate_by()


def succeeded(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result


def files(folder: Path = Path()) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_planned_file_is_repeated_with_its_plan(generate_by: Callable[..., Generate]) -> None:
    generate, asked = generate_by(planner={"capacity": 512}, conditions=True), ["--prompt", "calm", "--seconds", "3"]
    succeeded(generate("--quiet", *asked, "--plan-top-p", "0.9", "--out", "a.wav"))
    succeeded(generate("--quiet", "--like", "a.wav", "--out", "b.wav"))
    succeeded(generate("--quiet", *asked, "--no-plan", "--out", "c.wav"))
    first, again, other = (Path(f"{name}.wav") for name in "abc")
    assert len(read_metadata(first).plan["codes"]) == 26
    pcm, same, plain = (soundfile.read(path)[0] for path in (first, again, other))
    assert (np.array_equal(pcm, same), np.array_equal(pcm, plain)) == (True, False)
    assert (read_metadata(again).plan, read_metadata(other).plan) == (read_metadata(first).plan, {})


def test_a_run_of_the_command_reads_the_bundle_once(generate: Generate, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = bundle_reads(monkeypatch)
    assert generate("--prompt", "a", "--seconds", 1, "--out", "a.wav").exit_code == 0
    assert len(reads) == 1


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
def test_a_prompt_is_written_as_a_file(generate: Generate, suffix: str) -> None:
    result = generate("--prompt", "warm piano", "--seconds", 1.5, "--seed", 3, "--out", f"a{suffix}")
    assert result.exit_code == 0, result.output
    assert files() == [f"a{suffix}"]
    pcm, rate_hz = soundfile.read(f"a{suffix}")
    assert (len(pcm), pcm.shape[1], rate_hz) == (12_000, SPEC.audio_channels, RATE_HZ)
    assert np.abs(pcm).max() > 0.01
    assert "1.50 s, seed 3" in result.stderr
    assert "real time" in result.stderr
    assert result.stdout == ""


def test_what_of_the_prompts_is_played_is_printed(generate_by: Callable[..., Generate]) -> None:
    generate = generate_by(meaning=True, words=("calm", "chant"), more=FEW_VARIANTS)

    def messages(*arguments: str) -> list[str]:
        result = succeeded(generate("--steps", "1", "-o", "a.wav", *arguments))
        return [line for line in result.stderr.splitlines() if "plays" in line or "drawn" in line]

    assert messages("--prompt", "fast jazz drums") == ["plays: drums; jazz; 150 bpm"]
    (drawn,) = messages("--prompt", "chant", "--seed", "5")
    assert re.fullmatch(r"plays: (rock|jazz|ambient) · genre drawn by the seed: \1", drawn)
    assert messages("--like", "a.wav") == [drawn]
    assert messages("--prompt", "rock::1,0", "--prompt", "drums jazz::0,1") == [
        "rock plays: rock",
        "drums jazz plays: drums; jazz",
    ]
    assert messages("--prompt", "") == messages("--prompt", "fast", "--quiet") == []


def test_unknown_words_of_the_prompts_are_printed(generate_by: Callable[..., Generate]) -> None:
    generate = generate_by(words=("calm", "drums"), more=FEW_VARIANTS)

    def messages(*arguments: str) -> list[str]:
        result = succeeded(generate("--steps", "1", "-o", "a.wav", *arguments))
        return [line for line in result.stderr.splitlines() if "understood" in line]

    assert messages("--prompt", "calm jazz, [bold]lo-fi") == ["understood: calm · not understood: jazz, bold]lo-fi"]
    assert messages("--prompt", "calm::1,0", "--prompt", "trio::0,1") == ["understood: calm · not understood: trio"]
    assert messages("--prompt", "calm", "--negative-prompt", "noise") == ["understood: calm · not understood: noise"]
    assert messages("--prompt", "") == ["understood: nothing"]
    assert messages("--prompt", "calm drums") == messages("--prompt", "jazz", "--quiet") == []
    np.save("condition.npy", np.zeros((1, SPEC.condition_width), np.float32))
    assert messages("--condition", "condition.npy") == []


@pytest.mark.shipped
def test_standard_output_receives_audio_only(built: Built) -> None:
    command = [*GENERATE, str(built().path), "--prompt", "a", "--seconds", "1", "--seed", "1"]
    done = subprocess.run([*command, "-o", "-", "--format", "pcm"], cwd=ROOT, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) == RATE_HZ * 2 * SPEC.audio_channels
    assert b"seed 1" in done.stderr
    streamed = subprocess.run([*command, "-o", "-", "--format", "wav"], cwd=ROOT, capture_output=True, timeout=120)
    pcm, _ = soundfile.read(io.BytesIO(streamed.stdout), dtype="int16")
    assert pcm.tobytes() == done.stdout


@pytest.mark.shipped
def test_a_closed_standard_output_ends_the_command(built: Built) -> None:
    command = [*GENERATE, str(built().path), "--prompt", "a", "--seconds", "600", "-q"]
    process = subprocess.Popen(
        [*command, "-o", "-", "--format", "wav"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        assert process.stdout.read(4) == b"RIFF"
        process.stdout.close()
        messages = process.stderr.read()
        assert process.wait(timeout=60) == EXIT_FILE
    assert messages == b"error: the reader of standard output has closed it\n"


def test_help_has_sections_ranges_and_the_bundles_defaults(built: Built) -> None:
    def help_text(*arguments: str) -> str:
        return CliRunner().invoke(app, [*arguments, "--help"], terminal_width=200).output

    text = help_text()
    titles = ["Arguments:", "Options:", "Text:", "Source and target:", "Guidance:", "Each step:"]
    assert all(f"\n{title}\n" in text for title in titles)
    assert "0<=x<=50" in text
    assert "--solver ode|sde|ab2" in text
    assert "Denoising steps. Default: the model's." in text
    sampler = load_bundle(built().bundle).sampler
    assert f"Denoising steps. Default: {sampler.steps}, that of tiny." in help_text(str(built().path))
    assert f"Default: {sampler.shift:g}, that of tiny." in help_text(str(built().path))
    assert f"Default: {sampler.solver}, that of tiny." in help_text(str(built().path))
    assert f"Default: {sampler.guidance_mode}, that of tiny." in help_text(str(built().path))


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the machine's player was given: its only player, aplay, is a script that keeps its standard input."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "aplay").write_text(f"#!/bin/sh\n/bin/sleep 0.2\n/bin/cat > {folder}/played\n")
    (folder / "aplay").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder / "played"


@pytest.mark.parametrize("out", [["-o", "b.flac"], []])
def test_play_sends_the_audio_to_a_player(generate: Generate, played: Path, out: list[str]) -> None:
    options = ("--prompt", "a", "--seconds", 1.5, "--seed", 3)
    assert generate(*options, "--no-metadata", "-o", "a.wav").exit_code == 0
    result = generate(*options, "--play", *out)
    assert result.exit_code == 0, result.output
    assert "1.50 s, seed 3" in result.stderr
    assert played.read_bytes() == Path("a.wav").read_bytes()
    assert files() == sorted(["a.wav", "programs", *out[1:]])


def test_play_without_a_player_is_refused_before_anything_is_written(
    generate: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("runtime.audio.playback.PACKAGE", "no_such_package")
    result = generate("--prompt", "a", "--play", "-o", "a.wav")
    assert result.exit_code == EXIT_INVALID
    assert "ffplay, mpv, aplay" in result.stderr
    assert files() == []


def content(file: Path) -> tuple[bytes, object]:
    """The bytes; of safetensors, whose writer gives metadata no fixed order, the tensor's and the metadata."""
    data = file.read_bytes()
    return (data[8 + int.from_bytes(data[:8], "little") :] if file.suffix == ".safetensors" else data), read_metadata(
        file
    )


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3", "a.safetensors"])
def test_a_file_is_generated_again_from_its_metadata(generate: Generate, name: str) -> None:
    flags = ["--prompt", "a", "--guidance", "1,2.5", "--dcw-mode", "low", "--dcw-low", "0.01", "--seconds", 1.5]
    assert generate(*flags, "-o", name).exit_code == 0
    again = generate("--like", name, "-o", f"again-{name}")
    assert again.exit_code == 0, again.output
    assert "note" not in again.output
    assert content(Path(f"again-{name}")) == content(Path(name))
    changed = generate("--like", name, "--dcw-low", "0.02", "--steps", 2, "-o", f"changed-{name}")
    assert changed.exit_code == 0, changed.output
    made, now = read_metadata(Path(name)), read_metadata(Path(f"changed-{name}"))
    dcw = {**made.options["dcw"], "low": 0.02}
    assert now == made.model_copy(update={"options": {**made.options, "dcw": dcw, "steps": 2}})


def test_notes_are_written_and_repeated(generate_by: Callable[..., Generate]) -> None:
    generate = generate_by(notes=True, planner={"capacity": 512, "plan": True})
    succeeded(generate("--prompt", "verse", "--seconds", 3, "--seed", 2, "--plan", "--quantize", "-o", "a.mid"))
    file = mido.MidiFile("a.mid")
    assert file.length == pytest.approx(3.0, abs=0.002), "76 frames of 40 ms"
    assert "marker" in {event.type for event in file.tracks[0]}
    succeeded(generate("--like", "a.mid", "--quantize", "-o", "b.mid"))
    assert Path("b.mid").read_bytes() == Path("a.mid").read_bytes()


def test_notes_are_played_from_midi_and_json(generate_by: Callable[..., Generate]) -> None:
    generate = generate_by(notes=True, structure=True)
    flags = ["--prompt", "a", "--seconds", "1.28", "--seed", "2", "--notes-exact", "-o"]
    Path("a.json").write_text('[{"layer": "bass", "pitch": 40, "start_s": 0.4, "seconds": 0.4, "velocity": 127}]')
    succeeded(generate(*flags, "a.mid", "--notes", "a.json"))
    assert [note["pitch"] for note in read_metadata(Path("a.mid")).options["notes"]] == [40]
    # Its own notes, all of them this time.
    succeeded(generate(*flags, "b.wav", "--notes", "a.mid"))
    assert len(read_metadata(Path("b.wav")).options["notes"]) > 1
    succeeded(generate("--like", "a.mid", "-o", "c.mid"))
    assert Path("c.mid").read_bytes() == Path("a.mid").read_bytes()
    for name, content, message in (("d.json", "{", "neither MIDI nor JSON"), ("e.mid", "MThd", "not MIDI")):
        Path(name).write_text(content)
        refused = generate(*flags, "f.wav", "--notes", name)
        assert (refused.exit_code, message in refused.stderr) == (EXIT_INVALID, True), refused.stderr
    assert generate(*flags, "f.wav", "--notes", "none.mid").exit_code == EXIT_FILE
    plain = generate_by()("--prompt", "a", "--notes", "a.mid", "-o", "f.wav")
    assert (plain.exit_code, "no [notes]" in plain.stderr) == (EXIT_INVALID, True)


def test_stems_are_a_folder(generate_by: Callable[..., Generate]) -> None:
    generate, folder = generate_by(stems=True), Path("all/layers")
    flags = ["--prompt", "a", "--seconds", "2", "--seed", "2", "--stems"]
    succeeded(generate(*flags, folder, "-o", "a.wav"))
    assert files(folder) == ["bass.flac", "drums.flac", "mix.flac", "notes.mid", "options.json"]
    pcm = {name: soundfile.read(folder / f"{name}.flac")[0] for name in ("mix", "bass", "drums")}
    assert np.abs(pcm["bass"] + pcm["drums"] - pcm["mix"]).max() < 3 * 2**-23
    assert np.abs(pcm["mix"] - soundfile.read("a.wav")[0]).max() <= 2**-15
    assert read_metadata(folder / "bass.flac") == read_metadata(Path("a.wav"))
    succeeded(generate(*flags, "b"))
    assert not json.loads(Path("b/options.json").read_text())["estimated"]
    succeeded(generate(*flags, "c", "--source", "a.wav"))
    assert json.loads(Path("c/options.json").read_text())["estimated"]
    Path("file").write_text("")
    assert generate(*flags, "file").exit_code == EXIT_FILE


def test_stems_of_a_model_that_extracts_tracks(generate_by: Callable[..., Generate]) -> None:
    generate = generate_by(conditions=True, tracks=("drums", "vocals"))
    assert "extracting drums, vocals" in succeeded(generate("--prompt", "a", "--seconds", 1, "--stems", "a")).output
    assert files(Path("a")) == ["drums.flac", "mix.flac", "options.json", "vocals.flac"]
    assert not json.loads(Path("a/options.json").read_text())["exact"]


def test_a_file_without_metadata_cannot_be_generated_again(generate: Generate) -> None:
    assert generate("--prompt", "piano", "--no-metadata", "-o", "a.flac").exit_code == 0
    assert b"piano" not in Path("a.flac").read_bytes()
    result = generate("--like", "a.flac", "-o", "b.flac")
    assert result.exit_code == EXIT_INVALID
    assert "a.flac does not say what it was made from" in result.stderr
    assert generate("--like", "none.flac", "-o", "b.flac").exit_code == EXIT_FILE


def test_references_and_codes_are_flags(generate_by: Callable[..., Generate]) -> None:
    generate = generate_by(conditions=True, structure=True, more=FEW_VARIANTS)

    def latents(*arguments: str) -> np.ndarray:
        succeeded(generate("--prompt", "a", "--seed", "1", "-q", "-o", "o.safetensors", *arguments))
        return read_latents(Path("o.safetensors"), SPEC.channels, 1000)

    def refusal(*arguments: str) -> str:
        result = generate("--prompt", "a", "-o", "x.wav", *arguments)
        assert (result.exit_code, Path("x.wav").exists()) == (EXIT_INVALID, False)
        return result.stderr

    soundfile.write("a.wav", tone(RATE_HZ, RATE_HZ), RATE_HZ)
    Path("text.wav").write_text("no audio")
    plain = latents("--seconds", "1")
    for flag in ("--timbre", "--structure"):
        changed = latents("--seconds", "1", flag, "a.wav")
        assert np.abs(changed - plain).max() > 1e-3
        assert f"{flag}: not audio" in refusal(flag, "text.wav")
        assert np.array_equal(latents("--like", "o.safetensors", flag, "a.wav"), changed)
    by_names = latents("--codes", "<|audio_code_12|><|audio_code_7|>")
    assert len(by_names) == 2 * FRAMES_PER_CODE
    assert np.array_equal(latents("--codes", "12,7"), by_names)
    assert "--codes: code 1 is 99" in refusal("--codes", "12,99")


def test_what_cannot_be_decoded_of_a_source_is_said(generate: Generate) -> None:
    Path("a.flac").write_bytes(DAMAGED["cut flac"][0])
    for flag in ("--source", "--target-source"):
        strength = ["--target-curve", "1"] if flag == "--target-source" else []
        assert "note: at least 0." in generate("--prompt", "a", flag, "a.flac", *strength, "-o", "a.wav").stderr


def test_what_differs_from_the_file_to_generate_again_is_said(generate: Generate) -> None:
    for name in ("a", "b"):
        assert generate("--prompt", name, "-o", f"{name}.wav").exit_code == 0
    assert generate("--prompt", "c", "--source", "a.wav", "--seed", 1, "-o", "c.wav").exit_code == 0
    missing = generate("--like", "c.wav", "-o", "d.wav")
    assert missing.exit_code == EXIT_INVALID
    assert "made with source" in missing.stderr
    assert "add --source" in missing.stderr
    assert "another source" in generate("--like", "c.wav", "--source", "b.wav", "-o", "d.wav").stderr
    same = generate("--like", "c.wav", "--source", "a.wav", "-o", "d.wav")
    assert "note" not in same.stderr
    assert Path("c.wav").read_bytes() == Path("d.wav").read_bytes()
    other = read_metadata(Path("a.wav")).model_copy(update={"model_version": "0.9"})
    writer = AudioWriter("wav", RATE_HZ, 2, metadata=other.to_tag("wav"))
    Path("e.wav").write_bytes(writer.write(np.zeros((9, 2), np.float32)) + writer.close())
    said = " ".join(generate("--like", "e.wav", "-o", "d.wav").stderr.split())
    assert "note: the file was made with tiny 0.9, this is tiny 1.0.0: the result will differ" in said


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"bundle_sha256": 64 * "ab"[0]}, "note: the file was made by another model (aaaaaaaaaaaa; this is "),
        ({"precision": "int8"}, "by this model in another precision (int8; this is fp32): the result will differ"),
    ],
)
def test_a_file_of_another_model_or_precision_is_said_to_be(
    generate: Generate, changed: dict[str, str], expected: str
) -> None:
    assert generate("--prompt", "a", "--seed", 1, "-o", "a.wav").exit_code == 0
    other = read_metadata(Path("a.wav")).model_copy(update=changed)
    writer = AudioWriter("wav", RATE_HZ, 2, metadata=other.to_tag("wav"))
    Path("b.wav").write_bytes(writer.write(np.zeros((9, 2), np.float32)) + writer.close())
    result = generate("--like", "b.wav", "-o", "c.wav")
    assert expected in " ".join(result.stderr.split())
    assert Path("c.wav").read_bytes() == Path("a.wav").read_bytes(), "options and seed go on"


def test_covers_repaints_and_targets(generate: Generate) -> None:
    generate("--prompt", "a", "--seed", 1, "-o", "a.wav", "-q")
    assert generate("--prompt", "b", "--source", "a.wav", "--denoise", 0.5, "-o", "b.wav").exit_code == 0
    assert generate("--prompt", "b", "--source", "a.wav", "--repaint", "0.4:0.8", "-o", "c.safetensors").exit_code == 0
    assert generate("--prompt", "b", "--target-source", "a.wav", "--target-curve", "0,1", "-o", "d.wav").exit_code == 0
    generate("--prompt", "a", "--source", "a.wav", "--denoise", 0, "-o", "e.safetensors")
    painted, encoded = (read_latents(Path(name), SPEC.channels, 100) for name in ("c.safetensors", "e.safetensors"))
    assert np.array_equal(painted[:10], encoded[:10])
    assert np.array_equal(painted[20:], encoded[20:])
    assert np.abs(painted[10:20] - encoded[10:20]).max() > 0.01


def options_of(generate: Generate, *arguments: object) -> dict[str, Any]:
    """The options that flags amount to, as the latents file keeps them."""
    result = generate(*arguments, "-o", "o.safetensors")
    assert result.exit_code == 0, result.output
    return read_metadata(Path("o.safetensors")).options


def test_flags_become_options(generate: Generate) -> None:
    Path("curve.json").write_text("[1, 2.5]")
    options = options_of(
        generate, "--prompt", "a", "--seed", 1, "--guidance", "1,2,3", "--momentum", "-0.5", "--velocity-scale",
        "@curve.json", "--solver", "sde", "--negative-prompt", "12", "--dcw-mode", "pix", "--dcw-low", "[0, 0.1]",
        "--steps", 2,
    )  # fmt: skip
    assert options == {
        "prompt": "a", "seed": 1, "guidance": [1, 2, 3], "momentum": -0.5, "velocity_scale": [1, 2.5], "solver": "sde",
        "negative_prompt": "12", "dcw": {"mode": "pix", "low": [0, 0.1]}, "steps": 2,
    }  # fmt: skip


def test_flags_override_the_options_file(generate: Generate) -> None:
    Path("body.json").write_text(json.dumps({"prompt": "a", "steps": 3, "seed": 1}))
    assert options_of(generate, "--options", "body.json", "--steps", 2) == {"prompt": "a", "steps": 2, "seed": 1}
    refused = generate("-o", "a.wav")
    assert (refused.exit_code, "prompt: is missing" in refused.stderr) == (EXIT_INVALID, True)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["-o", "a.mid"], EXIT_INVALID, "no [notes]"),
        (["-o", "a.wav", "--quantize"], EXIT_INVALID, "has no effect on wav"),
        (["-o", "a.mid", "--play"], EXIT_INVALID, "mid cannot be played"),
        (["--stems", "layers"], EXIT_INVALID, "no [stems]"),
        ([], EXIT_INVALID, "fix: --out NAME.wav, or --play"),
        (["--play", "-o", "a.safetensors"], EXIT_INVALID, "latents cannot be played"),
        (["-o", "a.mp9"], EXIT_INVALID, "end it in one of .wav"),
        (["-o", "a.wav", "--format", "mp4"], EXIT_INVALID, "expected one of wav, pcm"),
        (["-o", "a.wav", "--target", "tpu"], EXIT_INVALID, "is not one of 'cpu'"),
        (["-o", "a.wav", "--steps", "201"], EXIT_INVALID, "steps: expected at most 200"),
        (["-o", "a.wav", "--steps", "many"], EXIT_INVALID, "steps: expected an integer from 1 to 200"),
        (["-o", "a.wav", "--guidance", "NaN"], EXIT_INVALID, "guidance: expected a number from 0"),
        (["-o", "a.wav", "--repaint", "1-2"], EXIT_INVALID, 'FROM:TO in seconds, such as "4:7.5"'),
        (["-o", "a.wav", "--denoise", "0.5"], EXIT_INVALID, "give a source or denoise 1"),
        (["-o", "a.wav", "--source", "none.wav"], EXIT_FILE, "none.wav cannot be read: No such file"),
        (["-o", "a.wav", "--source", "folder.wav"], EXIT_FILE, "folder.wav cannot be read: it is a folder"),
        (["-o", "a.wav", "--source", "text.json"], EXIT_INVALID, "not audio"),
        (["-o", "a.wav", "--guidance", "@none.json"], EXIT_FILE, "none.json cannot be read"),
        (["-o", "no/such/a.wav"], EXIT_FILE, "cannot be written: No such file"),
        (["-o", "folder.wav"], EXIT_FILE, "is a folder"),
        (["-o", "a.wav", "--options", "text.json"], EXIT_INVALID, "expected an object"),
        (
            ["--prompt", "", "-o", "a.wav", "--options", "none.json"],
            EXIT_FILE,
            "none.json cannot be read: No such file",
        ),
        (["-o", "a.wav", "--prompt", "x" * 90], EXIT_INVALID, "shorten it by 59 tokens"),
    ],
)
def test_errors_are_named_and_leave_no_file(generate: Generate, arguments: list[str], status: int, words: str) -> None:
    Path("text.json").write_text("[1]")
    Path("folder.wav").mkdir()
    result = generate("--prompt", "a", *arguments)
    assert result.exit_code == status, result.output
    assert words in result.stderr
    assert "Traceback" not in result.output
    assert files() == ["folder.wav", "text.json"]


def test_without_a_codec_only_latents_are_written(generate_by: Callable[..., Generate]) -> None:
    generate = generate_by(codec=False)
    result = generate("--prompt", "a", "-o", "a.wav")
    assert (result.exit_code, "fix: --out NAME.safetensors" in result.stderr) == (EXIT_INVALID, True)
    succeeded(generate("--prompt", "a", "-o", "a.safetensors"))
    assert files() == ["a.safetensors"]


def test_condition_tokens_replace_the_prompt(generate: Generate) -> None:
    tokens = np.random.default_rng(0).standard_normal((5, SPEC.condition_width)).astype(np.float32)
    np.save("tokens.npy", tokens)
    np.save("other.npy", -tokens)
    for name in ("tokens", "other"):
        result = generate("--condition", f"{name}.npy", "--seed", 3, "--out", f"{name}.safetensors")
        assert result.exit_code == 0, result.output
    found, other = (read_latents(Path(f"{name}.safetensors"), SPEC.channels, 1000) for name in ("tokens", "other"))
    assert not np.array_equal(found, other)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (None, "cannot be read"),
        (np.zeros((2, 12)), "does not hold float32"),
        (np.zeros(12, np.float32), "does not hold float32"),
        (np.zeros((2, 5), np.float32), "has width 5, the decoder takes 12"),
    ],
)
def test_condition_tokens_that_do_not_fit_are_refused(generate: Generate, array: Any, words: str) -> None:
    if array is not None:
        np.save("tokens.npy", array)
    result = generate("--condition", "tokens.npy", "--out", "a.wav")
    assert result.exit_code == EXIT_INVALID
    assert words in result.stderr


UNREADABLE = ("/dev/zero", "a.pipe", "/", "a.large", "none.wav")


def test_every_file_option_takes_regular_files_of_a_bounded_length(generate_by: Callable[..., Generate]) -> None:
    """A device has no end, a pipe that nothing writes to no beginning, and there is no room for a large file."""
    generate = generate_by(notes=True, structure=True)
    os.mkfifo("a.pipe")
    with open("a.large", "wb") as file:
        file.truncate(10 * 2**30)  # it takes no room on the disk
    parameters = inspect.signature(tickrt_generate, eval_str=True).parameters.values()
    names = {item.name for item in parameters if item.annotation.__origin__ == Path | None} - {"out", "stems"}
    assert {"source", "notes", "like"} < names
    given = [(f"--{name.replace('_', '-')}", path) for name in names for path in UNREADABLE]
    for flag, path in [*given, *(("--guidance", f"@{path}") for path in UNREADABLE)]:
        prompt = [] if flag == "--condition" else ["--prompt", "a"]
        result = generate(*prompt, flag, path, "--out", "a.wav")
        assert result.exit_code in (EXIT_FILE, EXIT_INVALID), (flag, path, result.output)
        assert path.removeprefix("@") in result.stderr or path == "a.large", (flag, result.stderr)
    assert files() == ["a.large", "a.pipe"]


def test_a_failed_generation_leaves_the_old_file(generate: Generate, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise NonFiniteError("generation 1 became non-finite in step 2")

    Path("a.wav").write_bytes(b"old")
    monkeypatch.setattr("runtime.audio.encoding._PcmEncoder.encode", fail)
    result = generate("--prompt", "a", "-o", "a.wav")
    assert (result.exit_code, "became non-finite" in result.stderr) == (EXIT_FAILED, True)
    assert (files(), Path("a.wav").read_bytes()) == (["a.wav"], b"old")


@pytest.mark.shipped
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_file(built: Built, tmp_path: Path, number: signal.Signals) -> None:
    arguments = ["--prompt", "a", "--seconds", "600", "--steps", "200", "-o", str(tmp_path / "a.wav")]
    process = subprocess.Popen(
        [*GENERATE, str(built().path), *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    try:
        deadline_s = time.monotonic() + 60
        while not files(tmp_path) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert [name.endswith(".partial") for name in files(tmp_path)] == [True]
        os.kill(process.pid, number)
        _, messages = process.communicate(timeout=30)  # the generation itself would take minutes
    finally:
        process.kill()
    assert process.returncode == EXIT_INTERRUPTED, messages
    assert b"interrupted; nothing was written" in messages
    assert b"Traceback" not in messages
    assert files(tmp_path) == []


@pytest.mark.shipped
def test_engines_of_a_shipped_deployment_are_built_on_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny_deployment(tmp_path / "shipped", more=FEW_VARIANTS)
    monkeypatch.setattr(deployment, "SHIPPED", tmp_path / "shipped")
    monkeypatch.chdir(tmp_path)
    arguments = ("--prompt", "a", "-q", "-o", "a.wav")
    assert CliRunner().invoke(app, ["shipped/tiny.toml", *arguments]).exit_code == EXIT_ENGINE
    assert CliRunner().invoke(app, ["tiny", *arguments]).exit_code == 0
    assert files() == ["a.wav", "shipped"]
    assert capfd.readouterr() == ("", "")
