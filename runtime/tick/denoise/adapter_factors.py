"""The factors of the adapters in use, on the device, for all buckets: columns of the packed rank Q."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from runtime.config.deployment import ADAPTER_RANK_MULTIPLE
from runtime.devices.device import Device, Stream, Tensor
from runtime.engines.adapters import FACTORS_A, FACTORS_B, Adapter, AdapterUse, Floats
from runtime.engines.engine import Engine


class AdapterFactors:
    """A `[Q, I]` and B `[Q, O]` float32, the factors of adapters below each other. One thread.

    Allocated once for `max_rank`; uploaded when an adapter enters, not per tick. One that is used no longer stays until
    another one needs its place. `version` counts changes of places.
    """

    def __init__(self, device: Device, stream: Stream, decoder: Engine, max_rank: int) -> None:
        self._device, self._stream, self._max_rank = device, stream, max_rank
        self._tensors = {
            # [max Q, I] or [max Q, O]
            name: device.zeros((max_rank, *map(int, decoder.inputs[name].shape[1:])), decoder.inputs[name].dtype)
            for name in (FACTORS_A, FACTORS_B)
        }
        self._places: dict[Adapter, int] = {}
        self._end = self.version = 0

    @property
    def rank(self) -> int:
        """Q: the rows in use, as a multiple of ADAPTER_RANK_MULTIPLE."""
        return -(-self._end // ADAPTER_RANK_MULTIPLE) * ADAPTER_RANK_MULTIPLE

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Input of the decoder -> its first Q rows."""
        # [Q, I] and [Q, O]
        return {name: tensor.view(self.rank, *tensor.shape[1:]) for name, tensor in self._tensors.items()}

    def hold(self, adapters: Collection[Adapter]) -> None:
        """Have these adapters on the device. Their ranks are at most `max_rank` in sum."""
        missing = [adapter for adapter in adapters if adapter not in self._places]
        if not missing:
            return
        if self._end + sum(adapter.rank for adapter in missing) > self._max_rank:
            self._places, self._end, missing = {}, 0, list(adapters)
        for adapter in missing:
            for name, factor in ((FACTORS_A, adapter.a), (FACTORS_B, adapter.b)):
                self._upload(name, factor)
            self._places[adapter] = self._end
            self._end += adapter.rank
        self.version += 1

    def write_weights(self, uses: Iterable[AdapterUse], out: Floats) -> None:
        """A row's weights `[Q]`: each adapter's strength in its places, 0 elsewhere."""
        out[:] = 0.0  # [Q]
        for adapter, strength in uses:
            begin = self._places[adapter]
            out[begin : begin + adapter.rank] = strength  # [rank of the adapter]

    def _upload(self, name: str, factor: Floats) -> None:
        tensor, width = self._tensors[name], factor.shape[1]
        # [rank of the adapter, I or O]
        self._device.upload(tensor.view(*factor.shape, start=self._end * width), factor, self._stream)
