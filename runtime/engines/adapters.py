"""LoRA adapters: their factors, and the catalog of a deployment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import RequestError, did_you_mean
from runtime.base.untrusted import quoted
from runtime.config.deployment import ADAPTER_RANK_MULTIPLE
from runtime.engines.manifest import TensorInfo

# The inputs that the decoder for adapters has besides the decoder's own: factors [Q, I] and [Q, O], weights [R, Q].
FACTORS_A, FACTORS_B, ROW_WEIGHTS = "adapter_a", "adapter_b", "adapter_weights"
ADAPTED_DECODER = "decoder.adapters"
# The build option of a decoder that was built with adapters in its weights: what describe_merged gives.
MERGED = "merged_adapters"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Adapter:
    """One adapter. a `[r, I]` and b `[r, O]` float32, read-only: the factors of all the bundle's matrices, next to each
    other, zeros where it has none; b includes the scale. modules: those that it changes. sha256: of the factors; one
    that is read again is equal."""

    id: str
    a: Floats = field(repr=False, compare=False)
    b: Floats = field(repr=False, compare=False)
    modules: tuple[str, ...] = field(default=(), compare=False)
    base_model: str | None = field(default=None, compare=False)
    trigger_words: tuple[str, ...] = field(default=(), compare=False)
    sha256: str = field(default="", repr=False)

    @property
    def rank(self) -> int:
        """r: the largest rank of its matrices."""
        return len(self.a)


class AdapterUse(NamedTuple):
    """An adapter in one generation."""

    adapter: Adapter
    strength: float


@dataclass(frozen=True)
class AdapterCatalog:
    """The adapters of a deployment by id. max_rank: the most that those of one tick may have, in sum."""

    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    max_rank: int = 0

    def uses(self, strengths: Mapping[str, float]) -> tuple[AdapterUse, ...]:
        """As find(), for one generation.

        Raises RequestError: unknown, of too high a rank in sum, or the deployment runs without adapters.
        """
        uses = self.find(strengths)
        if uses and not self.max_rank:
            raise RequestError("this deployment runs without adapters", field="adapters", fix="[runtime] adapter_rank")
        if (rank := total_rank([use.adapter for use in uses])) > self.max_rank:
            raise RequestError(
                f"the adapters' ranks are {rank} in sum, this deployment takes {self.max_rank}",
                field="adapters",
                fix="use fewer of them, or raise adapter_rank in [runtime]",
            )
        return uses

    def find(self, strengths: Mapping[str, float]) -> tuple[AdapterUse, ...]:
        """These adapters, without those of strength 0. Raises RequestError where one is unknown."""
        for id_ in strengths:
            if id_ not in self.adapters:
                raise RequestError(f"there is no adapter {quoted(id_)}", field="adapters", fix=self._fix(id_))
        return tuple([AdapterUse(self.adapters[id_], strength) for id_, strength in strengths.items() if strength])

    def _fix(self, id_: str) -> str:
        known = f"known: {', '.join(sorted(self.adapters))}" if self.adapters else "this server has none"
        return did_you_mean(id_, self.adapters) or known


NO_ADAPTERS = AdapterCatalog()


def describe_merged(uses: Iterable[AdapterUse]) -> dict[str, dict[str, float | str]]:
    """Adapters in an engine's weights, as its manifest has them: id -> strength, and the adapter's hash."""
    return {adapter.id: {"strength": strength, "sha256": adapter.sha256} for adapter, strength in uses}


def total_rank(adapters: Iterable[Adapter]) -> int:
    """The ranks of adapters in sum, each counted once."""
    return sum(adapter.rank for adapter in set(adapters))


def adapter_shapes(inputs: Mapping[str, TensorInfo], rows: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the inputs that the decoder for adapters has besides the decoder's own, at the smallest rank."""
    rank = ADAPTER_RANK_MULTIPLE
    factors = {name: (rank, int(inputs[name].shape[1])) for name in (FACTORS_A, FACTORS_B)}
    return {**factors, ROW_WEIGHTS: (rows, rank)}
