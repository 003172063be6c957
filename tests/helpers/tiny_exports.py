"""Tiny checkpoints and their bundles, made once for all test runs, in build/. Needs the extra `export`."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import pytest
from helpers import tiny_acestep, tiny_planner, tiny_stable_audio_3
from helpers.paths import ROOT

if TYPE_CHECKING:
    from engine_build.export.bundle_export import BundleExport
    from engine_build.export.bundle_tables import FamilyFacts


def exported_by(source: Any, *, with_text: bool = True) -> BundleExport[Any]:
    """What the family of a source exports of it."""
    if hasattr(source, "traits"):
        from engine_build.export.stable_audio_3.export import stable_audio_export

        return stable_audio_export(source, with_text=with_text)
    from engine_build.export.acestep.export import acestep_export

    return acestep_export(source, with_text=with_text)


def export_bundle(
    source: Any,
    folder: Path,
    *,
    say: Callable[[str], object] = str,
    with_text: bool = True,
    name: str = "tiny",
    canvas_s: float = 2.0,
) -> FamilyFacts:
    """Write a bundle of a source of either family; returns what it says."""
    from engine_build.export.bundle_export import ExportOptions, write_bundle

    options = ExportOptions(name, canvas_s, description=source.description)
    facts: FamilyFacts = write_bundle(exported_by(source, with_text=with_text), folder, options, say)
    return facts


class TinyExports:
    """Folders by name; what is asked for first is made first."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    @cache
    def of_this_code(cls) -> TinyExports:
        """Those of these sources and packages; of others the newest two are kept."""
        packages = ("torch", "diffusers", "transformers")
        for package in packages:
            pytest.importorskip(package)
        parts = [sys.version, *map(version, (*packages, "onnxscript", "onnx", "numpy"))]
        code = hashlib.sha256(repr(parts).encode())
        for folder in ("engine_build", "runtime", "tests/helpers"):
            for file in sorted((ROOT / folder).rglob("*.py")):
                code.update(file.read_bytes())
        root = ROOT / "build" / "tiny-exports" / code.hexdigest()[:16]
        root.parent.parent.mkdir(exist_ok=True)
        with filelock.FileLock(f"{root.parent}.lock"):
            root.mkdir(parents=True, exist_ok=True)
            root.touch()
            for old in sorted(root.parent.iterdir(), key=lambda folder: folder.stat().st_mtime)[:-3]:
                shutil.rmtree(old, ignore_errors=True)
        return cls(root)

    def acestep(self) -> Path:
        """A checkpoint with everything, that wants guidance: XL's in that its condition encoder is narrower."""
        return self._once("checkpoints/Tiny_Base", tiny_acestep.save_checkpoint)

    def acestep_own(self) -> Path:
        """The decoder's folder of the same in ACE-Step's own layout."""
        folder = self._once("checkpoints/all", lambda folder: tiny_acestep.save_own_checkpoint(self.acestep(), folder))
        return folder / "acestep-v15-base"

    def acestep_bundle(self) -> Path:
        """With a canvas of 2.4 s."""
        from engine_build.export.acestep.sources import AceStepCheckpoint

        source = AceStepCheckpoint(self.acestep())
        return self._once("bundles/base", lambda folder: export_bundle(source, folder, name="tiny-base", canvas_s=2.4))

    def acestep_planned(self) -> Path:
        """The same with a planner and its draft, as `--planner` and `--draft` export them."""
        from engine_build.export.acestep.planner import LanguageModelFolder, export_draft, export_planner
        from engine_build.export.bundle_tables import table_text

        def make(folder: Path) -> None:
            shutil.copytree(self.acestep_bundle(), folder)
            models = [
                LanguageModelFolder(tiny_planner.save_checkpoint(self.root / name, config, positions=2048))
                for name, config in (("long/lm", tiny_planner.CONFIG), ("long/draft", tiny_planner.DRAFT_CONFIG))
            ]
            tables = export_planner(models[0], folder)
            tables |= export_draft(models[1], folder, tables["planner"]["capacity"])
            with (folder / "bundle.toml").open("a", encoding="utf-8") as file:
                file.writelines(f"\n{table_text(name, values)}" for name, values in tables.items())

        return self._once("bundles/planned", make)

    def acestep_random(self) -> Path:
        """The bundle of random weights, which are beside the graphs; a canvas of 2 s."""
        from engine_build.export import torch_export
        from engine_build.export.acestep.sources import RandomAceStep

        changes = {"transformer_changes": tiny_acestep.SMALLEST_TRANSFORMER, "vae_changes": tiny_acestep.VAE}
        source = RandomAceStep(seed=1, **changes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_export, "INLINE_LIMIT_BYTES", 1000)
            return self._once("bundles/random", lambda folder: export_bundle(source, folder, name=source.name))

    def planner(self) -> Path:
        """A language model."""
        return self._once("checkpoints/Tiny-5Hz-lm", tiny_planner.save_checkpoint)

    def draft(self) -> Path:
        """A smaller one with the same tokens."""
        config = tiny_planner.DRAFT_CONFIG
        return self._once("checkpoints/draft", lambda folder: tiny_planner.save_checkpoint(folder, config))

    def stable_audio(self, size: str) -> Path:
        """Small in stable-audio-tools' layout; medium in diffusers', before distillation."""
        if size == "small":
            return self._once("checkpoints/Tiny_Small", lambda f: tiny_stable_audio_3.save_own_checkpoint(f, size))
        save = tiny_stable_audio_3.save_checkpoint
        return self._once("checkpoints/Tiny_Medium", lambda folder: save(folder, size, distilled=False))

    def stable_audio_bundle(self, size: str) -> Path:
        """With a canvas of 9 s."""
        from engine_build.export.stable_audio_3.sources import StableAudioCheckpoint

        source = StableAudioCheckpoint(self.stable_audio(size))
        return self._once(
            f"bundles/{size}", lambda folder: export_bundle(source, folder, name=f"tiny-{size}", canvas_s=9.0)
        )

    def _once(self, name: str, make: Callable[[Path], object]) -> Path:
        """The folder, made by whichever process asks for it first; what is half made is not there."""
        folder = self.root / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{folder}.lock"):
            if not folder.exists():
                new = folder.with_name(f"{folder.name}.new")
                shutil.rmtree(new, ignore_errors=True)
                make(new)
                new.rename(folder)
        return folder
