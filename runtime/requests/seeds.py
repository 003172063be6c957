"""Seeds of generations."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

SEED_BITS = 32


def draw_seed() -> int:
    """A random seed, for options without one."""
    return secrets.randbits(SEED_BITS)


def segment_seed(seed: int, index: int) -> int:
    """The seed of segment `index` of a generation with seed `seed`: the first has `seed` itself, later ones a hash."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"tickrt {seed} {index}".encode()).digest()[:8], "little")


def drawn_name(names: Sequence[str], seed: int) -> str:
    """The one of these names that a seed draws."""
    digest = hashlib.sha256(f"tickrt draws {seed}".encode()).digest()
    return names[int.from_bytes(digest[:8], "little") % len(names)]
