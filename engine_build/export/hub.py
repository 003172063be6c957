"""Checkpoints by their id on the Hugging Face hub: what the exporter reads of them is downloaded into the hub's cache.

huggingface_hub downloads; HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT and the account of `hf auth login` are its own.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from threading import Event
from typing import Any, Final

from huggingface_hub import HfApi, constants, get_cached_repo_tree, snapshot_download
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import ModelInfo, RepoFile
from huggingface_hub.utils.tqdm import disable_progress_bars, tqdm

from runtime.base.errors import ConfigError, FileError
from runtime.engines.manifest import file_sha256

# ORG/NAME, a folder in it, a revision. A name on the hub begins with a letter or a digit.
_ID: Final = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)((?:/[A-Za-z0-9][\w.-]*)*)(?:@(\S+))?")
_PLAIN: Final = re.compile(r"(diffusion_pytorch_)?model\.safetensors(\.index\.json)?")
_SHARD: Final = re.compile(r"-\d+-of-\d+\.")
_INDEX: Final = re.compile(r"(.+)\.safetensors\.index(\.[^.]+)?\.json")
_SMALL: Final = (".json", ".txt", ".jinja", ".model")
_SHA256_LENGTH: Final = 64
_SILENCE: Final = "silence_latent.pt"
_STABLE_AUDIO: Final = {"model_config.json", "duration_embedder/config.json"}
_OTHER: Final = "it is another family's: python -m engine_build.export {}"
_PUBLISHED: Final = "name a published checkpoint"
_AGAIN: Final = "run the command again: files that are complete are kept"
_MORE_SPACE: Final = "free disk space there, or HF_HOME names a folder on another disk"

# The name of every network error of the library's HTTP client, which differs by its release.
NetworkError: Final[Any] = HfHubHTTPError.__bases__[0]
Say = Callable[[str], None]
# (files of a repository, a folder in it or "") -> the folders whose models are read, and single files.
Reads = Callable[[Collection[str], str], "Wanted"]


@dataclass(frozen=True)
class Place:
    """Where a checkpoint lies. origin: ORG/NAME@COMMIT, with the folder in it; "" for a folder of one's own."""

    folder: Path
    origin: str = ""

    @property
    def name(self) -> str:
        """Of the repository, or of the folder."""
        return self.origin.partition("@")[0].rpartition("/")[2] if self.origin else self.folder.resolve().name


@dataclass(frozen=True)
class Wanted:
    """What is read of a repository: one set of weights in each of the folders, and single files."""

    folders: tuple[str, ...]
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Repository:
    """A repository at one commit. files: all of them, size in bytes. hashes: SHA-256, or git's SHA-1 of small files.

    is_cached: known from the cache alone, because the hub is not reachable.
    """

    id: str
    revision: str
    commit: str
    files: Mapping[str, int]
    hashes: Mapping[str, str]
    licence: str = ""
    is_gated: bool = False
    is_cached: bool = False

    @property
    def snapshot(self) -> Path:
        """Its folder in the cache."""
        return Path(constants.HF_HUB_CACHE) / f"models--{self.id.replace('/', '--')}" / "snapshots" / self.commit


@dataclass(frozen=True)
class Selection:
    """The files of a repository that are read. sizes: in bytes; missing: those that are not in the cache."""

    repository: Repository
    folder: str
    sizes: Mapping[str, int]
    missing: tuple[str, ...]

    @property
    def origin(self) -> str:
        """ORG/NAME@COMMIT, with the folder in it."""
        return f"{'/'.join(filter(None, (self.repository.id, self.folder)))}@{self.repository.commit}"

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(self.sizes.values())

    @property
    def missing_bytes(self) -> int:
        """Of what is still to be downloaded."""
        return sum(self.sizes[name] for name in self.missing)

    def report(self) -> str:
        """Files, size, licence and what it takes to get them, in a sentence."""
        here, repository = self.size_bytes - self.missing_bytes, self.repository
        if repository.is_cached:
            return f"{self.origin}: {len(self.sizes)} files, {_size(self.size_bytes)}, from the cache: no hub in reach"
        licence = f"licence: {repository.licence}" if repository.licence else "its model card names no licence"
        gated = ", gated: it needs an account that has accepted its terms" if repository.is_gated else ""
        kept = f", of which {_size(here)} are here" if here else ""
        return f"{self.origin}: {len(self.sizes)} files, {_size(self.size_bytes)}{kept}; {licence}{gated}"


def place_of(value: str, reads: Reads, say: Say) -> Place:
    """The folder of a checkpoint: `value` itself where it is one, else downloaded by its id on the hub.

    An id is ORG/NAME, ORG/NAME@REVISION (a branch, a tag or a commit), or one with a folder, ORG/NAME/FOLDER. A path
    that exists is a path; what is no id is taken for one. Raises ConfigError for an unknown id or revision, for terms
    that are not accepted and for files that are not what the hub has; FileError without network or space.
    """
    if Path(value).exists() or _ID.fullmatch(value) is None:
        return Place(Path(value))
    chosen = select(value, reads)
    say(chosen.report())
    return Place(download(chosen, say), chosen.origin)


def select(value: str, reads: Reads) -> Selection:
    """The files that an exporter reads of the repository with this id. Nothing is downloaded. Raises as place_of."""
    match = _ID.fullmatch(value)
    if match is None:
        raise ConfigError(f"{value!r} is no id of the hub", fix="ORG/NAME or ORG/NAME@REVISION")
    folder = match[2].removeprefix("/")
    repository = _repository(match[1], match[3] or constants.DEFAULT_REVISION)
    try:
        wanted = reads(repository.files, folder)
    except LookupError as error:
        raise ConfigError(f"{value} {error.args[0]}", fix=error.args[1]) from None
    names = _files_of(repository.files, wanted)
    missing = tuple(name for name in names if not (repository.snapshot / name).is_file())
    return Selection(repository, folder, {name: repository.files[name] for name in names}, missing)


def download(chosen: Selection, say: Say) -> Path:
    """The folder with the selected files, in the hub's cache: downloaded where they are missing, and compared.

    The library keeps complete files for the next run, goes on inside a file where a connection is lost (with Range
    requests, as long as the process lives), and compares sizes. Here, all files are compared with the hashes that
    the hub states for them, also those that were there before: SHA-256 of large ones, git's SHA-1 of small ones.
    Without the hub these are the names of the cache's files. Raises as place_of.
    """
    repository = chosen.repository
    if chosen.missing:
        if repository.is_cached:
            what = f"{repository.id} is not complete in the cache, {len(chosen.missing)} files are missing"
            raise FileError(f"{what}: {chosen.missing[0]}, ...", fix="run it with a network, without HF_HUB_OFFLINE")
        _need_space(chosen.missing_bytes, repository.id)
        if not sys.stderr.isatty() and constants.HF_HUB_DISABLE_PROGRESS_BARS is None:
            disable_progress_bars()
        with _clear_errors(repository.id, repository.revision):
            found = _snapshot_with(repository, [glob.escape(name) for name in chosen.sizes])
        if found.name != repository.commit:
            raise FileError(f"{repository.id} has changed while it was downloaded", fix=_AGAIN)
    say(f"comparing {_size(chosen.size_bytes)} with the hub's hashes")
    for name in chosen.sizes:
        _compare(repository.snapshot / name, repository.files[name], repository.hashes.get(name, ""))
    return repository.snapshot / chosen.folder


def _snapshot_with(repository: Repository, patterns: list[str]) -> Path:
    """The snapshot, with files of these patterns. Ctrl-C ends it at the next bytes of every file.

    The library by itself would complete all files that have begun: its progress bars are what stops them.
    """
    is_stopped = Event()

    class StoppableBar(tqdm):
        def update(self, n: float | None = 1) -> bool | None:
            if is_stopped.is_set():
                raise RuntimeError("interrupted")
            shown: bool | None = super().update(n)
            return shown

    with ThreadPoolExecutor(1) as thread:
        downloading = thread.submit(
            snapshot_download,
            repository.id,
            revision=repository.revision,
            allow_patterns=patterns,
            tqdm_class=StoppableBar,
        )
        try:
            return Path(downloading.result())
        except BaseException:
            is_stopped.set()
            raise


def acestep_files(files: Collection[str], folder: str) -> Wanted:
    """Of ACE-Step, in diffusers' layout or its own. Raises LookupError (what, fix)."""
    if "transformer/config.json" in files and "duration_embedder/config.json" not in files and not folder:
        parts = ("transformer", "vae", "condition_encoder", "text_encoder", "tokenizer")
        return Wanted((*parts, "audio_tokenizer", "audio_token_detokenizer"))
    decoders = sorted({_parent(file) for file in files if Path(file).name == _SILENCE})
    chosen = [each for each in decoders if folder in ("", each)]
    if not chosen:
        what = "is not a checkpoint of ACE-Step: it has no transformer/ and no silence_latent.pt"
        raise LookupError(what, _OTHER.format("stable_audio_3") if _STABLE_AUDIO & set(files) else _PUBLISHED)
    if len(chosen) > 1:
        raise LookupError(f"has several decoders: {', '.join(chosen)}", "name one: ORG/NAME/FOLDER")
    if not chosen[0] or "vae/config.json" not in files:
        raise LookupError("has the decoder alone, no vae/", "name a repository that has all parts")
    return Wanted((chosen[0], "vae", *_folders(files, "*mbedding*")), (f"{chosen[0]}/{_SILENCE}",))


def stable_audio_3_files(files: Collection[str], folder: str) -> Wanted:
    """Of Stable Audio 3, in stable-audio-tools' layout or diffusers'. Raises LookupError (what, fix)."""
    if folder:
        raise LookupError("is a folder of a repository; a Stable Audio 3 is all of one", "ORG/NAME")
    if "model_config.json" in files:
        return Wanted(("", *_folders(files, "*t5gemma*")))
    if "duration_embedder/config.json" in files:
        parts = ("transformer", "vae", "duration_embedder", "text_encoder", "tokenizer")
        return Wanted(parts, ("scheduler/scheduler_config.json",))
    what = "is not a checkpoint of Stable Audio 3: it has no model_config.json and no duration_embedder/"
    is_acestep = any(file.startswith("transformer/") or Path(file).name == _SILENCE for file in files)
    raise LookupError(what, _OTHER.format("acestep") if is_acestep else _PUBLISHED)


def model_files(files: Collection[str], folder: str) -> Wanted:
    """Of a language model or a text encoder: one folder. Raises LookupError (what, fix)."""
    config = f"{folder}/config.json".removeprefix("/")
    if config not in files:
        raise LookupError(f"has no {config}", "name the repository of one model, or a folder in it: ORG/NAME/FOLDER")
    return Wanted((folder,))


def preferred_weights(names: Iterable[str]) -> str | None:
    """A folder's file of weights: safetensors, or an index of shards; a variant (bf16, fp16) where it has no other."""
    found = [name for name in names if _INDEX.fullmatch(name)]
    found += [name for name in names if name.endswith(".safetensors") and not _SHARD.search(name)]
    return min(found, key=lambda name: (not _PLAIN.fullmatch(name), name), default=None)


def _files_of(files: Collection[str], wanted: Wanted) -> list[str]:
    """The files that are read: weights and what is small beside them."""
    found = {name for name in wanted.files if name in files}
    for folder in wanted.folders:
        names = [Path(file).name for file in files if _parent(file) == folder]
        weights = preferred_weights(names)
        shards = None if weights is None else _INDEX.fullmatch(weights)
        small = {name for name in names if name.endswith(_SMALL) and not _INDEX.fullmatch(name)}
        if "tokenizer.json" in small:
            small = {name for name in small if not name.endswith(".model")}
        chosen = small | ({weights} if weights else set())
        if shards:
            whole = f"{shards[1]}{shards[2] or ''}.safetensors"
            chosen |= {name for name in names if name != whole and _SHARD.sub(".", name) == whole}
        found |= {f"{folder}/{name}".removeprefix("/") for name in chosen}
    return sorted(found)


def _repository(id: str, revision: str) -> Repository:
    """From the hub, or from the cache where it is not reachable."""
    if constants.HF_HUB_OFFLINE:
        return _cached(id, revision)
    try:
        with _clear_errors(id, revision):
            return _published(id, revision)
    except _NotReachableError as error:
        try:
            return _cached(id, revision)
        except ConfigError:
            raise error from None


def _published(id: str, revision: str) -> Repository:
    api = HfApi()
    info = api.model_info(id, revision=revision)
    commit = str(info.sha)
    tree = [item for item in api.list_repo_tree(id, recursive=True, revision=commit) if isinstance(item, RepoFile)]
    hashes = {item.path: item.blob_id if item.lfs is None else item.lfs.sha256 for item in tree}
    sizes = {item.path: item.size for item in tree}
    return Repository(id, revision, commit, sizes, hashes, _licence(info), bool(info.gated))


def _cached(id: str, revision: str) -> Repository:
    """Raises ConfigError where the cache has nothing of it."""
    try:
        snapshot = Path(snapshot_download(id, revision=revision, local_files_only=True, allow_patterns=[]))
    except LocalEntryNotFoundError:
        what = f"{id} at revision {revision} is not in the cache, and the hub is not asked (HF_HUB_OFFLINE)"
        raise ConfigError(what, fix="unset HF_HUB_OFFLINE once; or HF_HOME names another cache") from None
    found = {file.relative_to(snapshot).as_posix(): file for file in snapshot.rglob("*") if file.is_file()}
    try:
        sizes = {item.path: item.size for item in get_cached_repo_tree(id, revision=snapshot.name)}
    except CachedRepoTreeNotFoundError:  # made by an older release of the library
        sizes = {name: file.stat().st_size for name, file in found.items()}
    # The list in the cache has no SHA-256 of large files: links do.
    hashes = {name: file.resolve().name for name, file in found.items() if file.is_symlink()}
    return Repository(id, revision, snapshot.name, sizes, hashes, is_cached=True)


def _licence(info: ModelInfo) -> str:
    card: Any = info.card_data
    names = [str(getattr(card, key, None) or "") for key in ("license", "license_name", "license_link")]
    return ", ".join(name for name in names if name and name != "other")


def _need_space(size_bytes: int, id: str) -> None:
    cache = Path(constants.HF_HUB_CACHE)
    place = next(path for path in (cache, *cache.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(place).free
    if free < size_bytes:
        what = f"{id} takes {_size(size_bytes)} more in {cache}, where {_size(free)} are free"
        raise FileError(what, fix=_MORE_SPACE)


def _compare(file: Path, size_bytes: int, digest: str) -> None:
    """Raises ConfigError where a file is not what the hub has."""
    found = file.stat().st_size
    if found != size_bytes:
        what = f"has {found} bytes, {size_bytes} on the hub"
    elif digest and digest != (file_sha256(file) if len(digest) == _SHA256_LENGTH else _git_sha1(file)):
        what = "has other contents than on the hub"
    else:
        return
    raise ConfigError(f"{file} {what}", fix=f"remove {file.resolve()}; the same command downloads it again")


def _git_sha1(file: Path) -> str:
    data = file.read_bytes()
    return hashlib.sha1(b"blob %d\0%s" % (len(data), data), usedforsecurity=False).hexdigest()


class _NotReachableError(FileError):
    """The hub does not answer."""


@contextmanager
def _clear_errors(id: str, revision: str) -> Iterator[None]:
    """Turn what the library raises into errors with a fix. The order is that of their classes."""
    page = f"{constants.ENDPOINT}/{id}"
    try:
        yield
    except GatedRepoError as error:
        fix = f"accept the terms on {page}, then hf auth login with that account"
        raise ConfigError(f"{id} is gated: its authors want their terms accepted first", fix=fix) from error
    except RevisionNotFoundError as error:
        raise ConfigError(f"{id} has no revision {revision}", fix=f"see {page}/tree/main, or leave it out") from error
    except RepositoryNotFoundError as error:
        what = f"there is no folder {id}, and the hub shows no model with this id"
        raise ConfigError(what, fix="check the name; hf auth login where it is private") from error
    except (OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
        raise _not_reachable(id) from error
    except HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", "")
        raise FileError(f"the hub answers {status} for {id}", fix=_AGAIN) from error
    except NetworkError as error:
        raise _not_reachable(id) from error
    except OSError as error:
        fix = _MORE_SPACE if error.errno == errno.ENOSPC else _AGAIN
        raise FileError(f"{id} cannot be downloaded into {constants.HF_HUB_CACHE}: {error}", fix=fix) from error
    except RuntimeError as error:  # of hf_xet
        raise FileError(f"{id} cannot be downloaded: {error}", fix=_AGAIN) from error


def _not_reachable(id: str) -> FileError:
    what = f"{id} is no folder here, and the hub {constants.ENDPOINT} is not reachable"
    return _NotReachableError(what, fix=f"check the network; {_AGAIN}")


def _folders(files: Iterable[str], pattern: str) -> list[str]:
    return sorted({file.partition("/")[0] for file in files if fnmatch(file, f"{pattern}/*")})


def _parent(file: str) -> str:
    return file.rpartition("/")[0]


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.1f} MB"
