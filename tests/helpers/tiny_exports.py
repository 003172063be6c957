"""Tiny checkpoints and their bundles, made once for all processes of a test run. Needs the extra `export`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import pytest
from helpers import tiny_acestep, tiny_planner, tiny_stable_audio_3

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
    def of(cls, tmp_path_factory: pytest.TempPathFactory) -> TinyExports:
        """Those of this run: of pytest-xdist's processes, each has a folder of its own in the run's."""
        for package in ("torch", "diffusers", "transformers"):
            pytest.importorskip(package)
        own = tmp_path_factory.getbasetemp()
        return cls((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "tiny-exports")

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
                make(new)
                new.rename(folder)
        return folder
