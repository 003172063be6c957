"""Structure: codes and hints, their graphs, and a tokenizer that learns."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")

from configs.demo.recipe.corpus.batches import draw_songs, render_songs  # noqa: E402
from configs.demo.recipe.latents import CHANNELS, CODE_DIGITS, CODE_LEVELS, NUM_CODES, SILENCE  # noqa: E402
from configs.demo.recipe.structure import (  # noqa: E402
    NOTE_CHANNELS,
    CodesToHints,
    LatentsToCodes,
    StructureTokenizer,
    TokenizerConfig,
    export_structure,
    hints_of,
    train_tokenizer,
)


class Digits(torch.nn.Module):
    """A tokenizer that passes its digits on as levels."""

    def levels(self, digits: torch.Tensor) -> torch.Tensor:
        return digits


def test_a_code_is_a_number_in_base_five() -> None:
    rng = np.random.default_rng(0)
    digits = rng.integers(0, CODE_LEVELS, (200, CODE_DIGITS))
    digits[0], digits[1] = 0, CODE_LEVELS - 1
    codes = (digits * CODE_LEVELS ** np.arange(CODE_DIGITS)).sum(axis=1)
    assert codes.max() == NUM_CODES - 1
    tokenizer = Digits()
    seen: list[torch.Tensor] = []
    tokenizer.levels = lambda values: seen.append(values) or torch.zeros(1, 5 * len(codes), NOTE_CHANNELS)  # type: ignore
    CodesToHints(tokenizer)(torch.from_numpy(codes)[None])  # type: ignore[arg-type]
    assert np.array_equal(seen[0][0].numpy(), digits - CODE_LEVELS // 2)


def test_codes_are_what_hints_are_made_of() -> None:
    tokenizer = StructureTokenizer().eval()
    latents = 3.0 * torch.rand(2, 50, CHANNELS, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        codes = LatentsToCodes(tokenizer)(latents)
        hints = CodesToHints(tokenizer)(codes)
        levels = tokenizer(latents).clamp(0.0, 1.0)
    assert codes.dtype == torch.int64
    assert codes.shape == (2, 10)
    assert 0 <= codes.min() <= codes.max() < NUM_CODES
    assert torch.allclose(hints[:, :, :NOTE_CHANNELS], 6.0 * levels + SILENCE, atol=1e-5)
    assert torch.all(hints[:, :, NOTE_CHANNELS:] == SILENCE)


def test_instruments_change_no_code() -> None:
    latents = torch.rand(1, 25, CHANNELS, generator=torch.Generator().manual_seed(1))
    encode = LatentsToCodes(StructureTokenizer().eval())
    with torch.no_grad():
        codes = encode(latents)
        latents[:, :, NOTE_CHANNELS:] = 5.0
        assert torch.equal(codes, encode(latents))


def test_graphs_are_those_of_torch(tmp_path: Path) -> None:
    tokenizer = StructureTokenizer().eval()
    export_structure(tokenizer, tmp_path)
    latents = 3.0 * torch.rand(3, 35, CHANNELS, generator=torch.Generator().manual_seed(2))
    encode, decode = (ort.InferenceSession(str(tmp_path / f"structure_{half}.onnx")) for half in ("encode", "decode"))
    (codes,) = encode.run(["codes"], {"latents": latents.numpy()})
    (hints,) = decode.run(["hints"], {"codes": codes})
    with torch.no_grad():
        assert np.mean(codes == LatentsToCodes(tokenizer)(latents).numpy()) > 0.95
        assert np.abs(hints - CodesToHints(tokenizer)(torch.from_numpy(codes)).numpy()).max() < 1e-4


def test_a_tokenizer_learns_songs() -> None:
    songs = draw_songs(8, seed=3)
    levels = render_songs(songs)
    error = [
        float(
            np.square(
                hints_of(train_tokenizer(songs, levels, TokenizerConfig(steps=steps)), levels) / 255.0 - levels / 255.0
            )[:, :, :55].mean()
        )
        for steps in (1, 40)
    ]
    assert error[1] < 0.8 * error[0]
