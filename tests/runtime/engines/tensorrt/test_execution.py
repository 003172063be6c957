"""Which context an execution launches on: the shared one; its own where it is warmed up or captured."""

from __future__ import annotations

from typing import Any

import pytest
from simulator.fixture import simulated


class RecordingPool:
    """A pool whose contexts record what is launched on them, by name."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []
        self.num_taken = 0

    def context(self, name: str) -> Any:
        calls = self.calls

        class Context:
            def launch(self, settings: object, stream: object) -> None:
                calls.append((name, settings))

        return Context()

    def shared(self, index: int) -> Any:
        return self.context(f"shared {index}")

    def take(self, index: int) -> Any:
        self.num_taken += 1
        return self.context(f"own {index}")

    def give_back(self, context: object) -> None:
        self.num_taken -= 1


@pytest.mark.parametrize("range_index", [0, 2])
def test_launches_use_the_shared_context_and_warm_ups_one_of_their_own(range_index: int) -> None:
    with simulated():
        from runtime.engines.tensorrt.engine import TensorRtExecution
        from runtime.engines.tensorrt.library import ContextSettings

        pool: Any = RecordingPool()
        settings, stream = ContextSettings(range_index, {}), Any
        execution = TensorRtExecution(pool, settings)
        for call in (execution.launch, execution.warm_up, execution.warm_up, execution.launch):
            call(stream)
        assert pool.num_taken == 1
        execution.release()
        execution.release()
        assert pool.num_taken == 0
        execution.launch(stream)
        names = ("shared", "own", "own", "shared", "shared")
        assert pool.calls == [(f"{name} {range_index}", settings) for name in names]
