"""What of a tick could not be launched."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from runtime.base.errors import TickError, UnitOfWork
from runtime.tick.scheduling.slot import Slot

logger = logging.getLogger("tickrt")


class LaunchFailures(list[tuple[Sequence[Slot], TickError]]):
    """Slots that fail with an error, because an execute of their shape did; slots of other shapes go on."""

    def of(self, slots: Sequence[Slot]) -> UnitOfWork:
        """Around what is launched for these slots."""
        return UnitOfWork("the launch of a tick", partial(self._note, slots))

    def _note(self, slots: Sequence[Slot], error: TickError) -> None:
        logger.error("%d generations end, a tick could not be launched for them: %s", len(slots), error.what)
        self.append((slots, error))
