"""Checkpoints by id: the hub's cache layout, and a local server that speaks its routes. Needs no torch, no network."""

from __future__ import annotations

import errno
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.hub_server import Hub, Model, hub_server, use_hub
from huggingface_hub import constants

from engine_build.export import hub as hub_module
from engine_build.export.hub import (
    Place,
    acestep_files,
    model_files,
    place_of,
    preferred_weights,
    select,
    stable_audio_3_files,
)
from runtime.base.errors import ConfigError, FileError, TickError

ID = "ACE-Step/songs"
COMMIT = "c" * 40
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
READ = {
    "transformer/config.json": b"{}",
    WEIGHTS: bytes(range(256)) * 40,
    "vae/config.json": b'{"a": 1}',
    "vae/diffusion_pytorch_model.safetensors": b"v" * 5000,
}
# What the exporter does not read.
OTHER = {
    "README.md": b"# songs",
    "transformer/diffusion_pytorch_model.fp16.safetensors": b"h" * 3000,
    "scheduler/scheduler_config.json": b"{}",
    "song.wav": b"w" * 9000,
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as server:
        use_hub(monkeypatch, server.url, tmp_path / "home")
        server.models[ID] = Model({**READ, **OTHER})
        yield server


@pytest.fixture
def said() -> list[str]:
    return []


def refused(value: str, kind: type[TickError] = ConfigError) -> TickError:
    with pytest.raises(kind) as found:
        place_of(value, acestep_files, lambda text: None)
    return found.value


def test_only_what_is_read_is_downloaded_and_the_commit_is_known(hub: Hub, said: list[str]) -> None:
    place = place_of(ID, acestep_files, said.append)
    assert {name: (place.folder / name).read_bytes() for name in READ} == READ
    assert {name.relative_to(place.folder).as_posix() for name in place.folder.rglob("*") if name.is_file()} == {*READ}
    assert (place.origin, place.name) == (f"{ID}@{COMMIT}", "songs")
    assert sorted(hub.downloads()) == sorted(READ)
    assert re.search(rf"{ID}@{COMMIT}: 4 files, 0.0 MB; licence: mit", said[0])


def test_what_is_there_is_not_downloaded_again(hub: Hub, said: list[str]) -> None:
    first = place_of(ID, acestep_files, said.append)
    hub.requests.clear()
    assert place_of(f"{ID}@main", acestep_files, said.append) == first
    assert place_of(f"{ID}@{COMMIT}", acestep_files, said.append) == first
    assert hub.downloads() == []


def test_a_lost_connection_goes_on_inside_the_file(hub: Hub, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)
    hub.cut[WEIGHTS] = 4096
    place = place_of(ID, acestep_files, said.append)
    assert (place.folder / WEIGHTS).read_bytes() == READ[WEIGHTS]
    ranges = [ranges for method, path, ranges in hub.requests if method == "GET" and path.endswith(WEIGHTS)]
    assert ranges == ["", "bytes=4096-"]


def test_after_an_interruption_complete_files_are_kept(hub: Hub, said: list[str]) -> None:
    others = threading.Semaphore(0)

    def wait_for_others(name: str) -> None:
        if name != WEIGHTS:
            others.release()
        else:
            assert all(others.acquire(timeout=60) for _ in range(len(READ) - 1))

    hub.before_file = wait_for_others
    hub.sent[WEIGHTS] = READ[WEIGHTS][:4096]
    refused(ID, FileError)
    hub.before_file = lambda name: None
    hub.sent.clear()
    hub.requests.clear()
    place = place_of(ID, acestep_files, said.append)
    assert {name: (place.folder / name).read_bytes() for name in READ} == READ
    assert hub.downloads() == [WEIGHTS]
    assert "are here; licence" in said[0]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals of threads")
def test_ctrl_c_ends_a_download_inside_of_its_files(hub: Hub, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    large = b"x" * 3_000_000
    hub.models[ID].files[WEIGHTS] = large
    hub.slow.add(WEIGHTS)
    main = threading.main_thread().ident
    assert main
    hub.before_file = lambda name: signal.pthread_kill(main, signal.SIGINT) if name == WEIGHTS else None
    with pytest.raises(KeyboardInterrupt):
        place_of(ID, acestep_files, said.append)
    assert hub.written < len(large)
    hub.slow.clear()
    hub.before_file = lambda name: None
    assert (place_of(ID, acestep_files, said.append).folder / WEIGHTS).read_bytes() == large


@pytest.mark.parametrize("data", [READ[WEIGHTS][:-1], READ[WEIGHTS] + b"x"], ids=["shorter", "longer"])
def test_a_file_of_another_size_is_noticed(hub: Hub, data: bytes) -> None:
    hub.sent[WEIGHTS] = data
    error = refused(ID, FileError)
    assert "cannot be downloaded" in error.what
    assert "run the command again" in error.fix


def test_other_contents_of_the_same_size_are_noticed_and_repaired_as_the_fix_says(hub: Hub, said: list[str]) -> None:
    hub.sent[WEIGHTS] = b"x" * len(READ[WEIGHTS])
    error = refused(ID)
    assert f"{WEIGHTS} has other contents than on the hub" in error.what
    file = re.match(r"remove (\S+);", error.fix)
    assert file
    Path(file[1]).unlink()
    hub.sent.clear()
    assert (place_of(ID, acestep_files, said.append).folder / WEIGHTS).read_bytes() == READ[WEIGHTS]


@pytest.mark.parametrize("name", ["transformer/config.json", WEIGHTS])
def test_a_file_that_was_changed_in_the_cache_is_noticed(
    hub: Hub, said: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of(ID, acestep_files, said.append)
    file = place.folder / name
    file.resolve().write_bytes(b"x" * file.stat().st_size)
    assert f"{name} has other contents than on the hub" in refused(ID).what
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert f"{name} has other contents than on the hub" in refused(ID).what
    size_bytes = file.stat().st_size
    file.resolve().write_bytes(b"x" * (size_bytes + 1))
    assert f"{name} has {size_bytes + 1} bytes, {size_bytes} on the hub" in refused(ID).what


def test_a_gated_model_says_where_and_how(hub: Hub, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    hub.models[ID].is_gated = True
    with pytest.raises(ConfigError) as found:
        place_of(ID, acestep_files, said.append)
    assert "it needs an account that has accepted its terms" in said[0]
    assert found.value.what == f"{ID} is gated: its authors want their terms accepted first"
    assert found.value.fix == f"accept the terms on {hub.url}/{ID}, then hf auth login with that account"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    place = place_of(ID, acestep_files, said.append)
    assert "Bearer hf_secret" in hub.tokens
    assert "secret" not in " ".join([*said, place.origin, str(place.folder)])


def test_an_unknown_id_and_an_unknown_revision(hub: Hub) -> None:
    error = refused("ACE-Step/none")
    assert error.what == "there is no folder ACE-Step/none, and the hub shows no model with this id"
    assert "hf auth login where it is private" in error.fix
    error = refused(f"{ID}@v9")
    assert error.what == f"{ID} has no revision v9"
    assert f"{hub.url}/{ID}/tree/main" in error.fix


def test_without_a_network_the_cache_is_taken_and_an_empty_one_is_an_error(
    hub: Hub, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of(ID, acestep_files, said.append)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    assert place_of(ID, acestep_files, said.append) == place
    assert "from the cache" in said[-2]
    shutil.rmtree(constants.HF_HUB_CACHE)
    error = refused(ID, FileError)
    assert "the hub http://127.0.0.1:9 is not reachable" in error.what
    assert "check the network" in error.fix


def test_offline_nothing_is_asked(hub: Hub, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of(ID, acestep_files, said.append)
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert place_of(ID, acestep_files, said.append) == place
    (place.folder / WEIGHTS).unlink()
    error = refused(ID, FileError)
    assert f"is not complete in the cache, 1 files are missing: {WEIGHTS}" in error.what
    shutil.rmtree(constants.HF_HUB_CACHE)
    error = refused(ID)
    assert "is not in the cache, and the hub is not asked (HF_HUB_OFFLINE)" in error.what
    assert hub.requests == []


def test_a_cache_that_another_release_made_is_read(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """refs, blobs and snapshots alone: no list of the repository's files."""
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path / "home")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    model, root = Model(READ), tmp_path / "home" / "hub" / "models--ACE-Step--songs"
    for name, data in READ.items():
        blob, link = root / "blobs" / model.etag(name), root / "snapshots" / COMMIT / name
        for file in (blob, link):
            file.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link.symlink_to(blob)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    place = place_of(ID, acestep_files, said.append)
    assert place == Place(root / "snapshots" / COMMIT, f"{ID}@{COMMIT}")
    (root / "blobs" / model.etag(WEIGHTS)).write_bytes(b"x" * len(READ[WEIGHTS]))
    assert "has other contents" in refused(ID).what


def test_too_little_space_is_said_before_the_download(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    error = refused(ID, FileError)
    assert re.search(r"takes 0\.0 MB more in .*hub, where 0\.0 MB are free", error.what)
    assert "HF_HOME names a folder on another disk" in error.fix
    assert hub.downloads() == []


def test_a_disk_that_fills_up_is_an_error_with_its_fix(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hub_module, "snapshot_download", full)
    assert "free disk space there" in refused(ID, FileError).fix


def test_a_folder_is_a_folder_also_where_its_path_looks_like_an_id(
    hub: Hub, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(ID).mkdir(parents=True)
    assert place_of(ID, acestep_files, said.append) == Place(Path(ID))
    for path in ("none", "./a/b", "../a/b", "/a/b"):
        assert place_of(path, acestep_files, said.append) == Place(Path(path))
    assert (hub.requests, said) == ([], [])


@pytest.mark.parametrize(
    ("card", "says"),
    [
        ({}, "its model card names no licence"),
        ({"license": "other", "license_name": "stability-ai-community"}, "licence: stability-ai-community"),
    ],
)
def test_the_licence_is_said(hub: Hub, card: dict[str, str], says: str) -> None:
    hub.models[ID].card = card
    assert says in select(ID, acestep_files).report()


def selected(files: list[str], reads: hub_module.Reads, folder: str = "") -> list[str]:
    return hub_module._files_of(files, reads(files, folder))


OWN = [
    "config.json",
    "README.md",
    "acestep-v15-turbo/config.json",
    "acestep-v15-turbo/model.safetensors",
    "acestep-v15-turbo/modeling.py",
    "acestep-v15-turbo/silence_latent.pt",
    "acestep-5Hz-lm-1.7B/config.json",
    "acestep-5Hz-lm-1.7B/model.safetensors",
    "Qwen3-Embedding-0.6B/config.json",
    "Qwen3-Embedding-0.6B/model.safetensors",
    "Qwen3-Embedding-0.6B/tokenizer.json",
    "vae/config.json",
    "vae/diffusion_pytorch_model.safetensors",
]


def test_of_acesteps_own_layout_the_decoder_codec_and_text_encoder_are_read() -> None:
    wanted = [name for name in OWN if "/" in name and "5Hz" not in name and not name.endswith(".py")]
    assert selected(OWN, acestep_files) == sorted(wanted)
    assert selected(OWN, acestep_files, "acestep-v15-turbo") == sorted(wanted)
    language = ["acestep-5Hz-lm-1.7B/config.json", "acestep-5Hz-lm-1.7B/model.safetensors"]
    assert selected(OWN, model_files, "acestep-5Hz-lm-1.7B") == language
    with pytest.raises(LookupError, match="several decoders: acestep-v15-base, acestep-v15-turbo"):
        acestep_files([*OWN, "acestep-v15-base/silence_latent.pt"], "")
    with pytest.raises(LookupError, match="has the decoder alone, no vae/"):
        acestep_files(["config.json", "model.safetensors", "silence_latent.pt"], "")


def test_of_stable_audio_3_one_layout_is_read() -> None:
    files = ["model_config.json", "model.safetensors", "model.ckpt", "other.safetensors", "vae/config.json"]
    text = [f"t5gemma-b-b-ul2/{name}" for name in ("config.json", "model.safetensors", "tokenizer.json")]
    assert selected([*files, *text, "t5gemma-b-b-ul2/tokenizer.model"], stable_audio_3_files) == sorted(
        ["model_config.json", "model.safetensors", *text]
    )


@pytest.mark.parametrize(
    ("files", "reads", "fix"),
    [
        (OWN, stable_audio_3_files, "python -m engine_build.export acestep"),
        (["model_config.json", "model.safetensors"], acestep_files, "python -m engine_build.export stable_audio_3"),
        (["config.json", "model.safetensors"], acestep_files, "name a published checkpoint"),
    ],
)
def test_another_familys_model_is_refused_before_it_is_downloaded(
    hub: Hub, files: list[str], reads: hub_module.Reads, fix: str
) -> None:
    hub.models["a/b"] = Model(dict.fromkeys(files, b"{}"))
    with pytest.raises(ConfigError) as found:
        place_of("a/b", reads, lambda text: None)
    assert "a/b is not a checkpoint of" in found.value.what
    assert fix in found.value.fix
    assert hub.downloads() == []


def test_of_several_sets_of_weights_one_is_read_with_all_its_shards() -> None:
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    variant = ["model.fp16-00001-of-00001.safetensors", "model.safetensors.index.fp16.json"]
    files = ["config.json", *shards, "model.safetensors.index.json", *variant]
    assert preferred_weights(files) == "model.safetensors.index.json"
    assert selected(files, model_files) == sorted(["config.json", *shards, "model.safetensors.index.json"])
    assert selected(["config.json", *variant], model_files) == sorted(["config.json", *variant])
