"""Seeds of generations."""

from __future__ import annotations

import hashlib
import secrets

SEED_BITS = 32


def draw_seed() -> int:
    """A random seed, for options without one."""
    return secrets.randbits(SEED_BITS)


def segment_seed(seed: int, index: int) -> int:
    """The seed of segment `index` of a generation with seed `seed`: the first has `seed` itself, later ones a hash."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"tickrt {seed} {index}".encode()).digest()[:8], "little")
