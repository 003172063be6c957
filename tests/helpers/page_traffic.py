"""The messages of a page's sessions, and waiting for what they bring."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
TRY_MS = 50
# Generous: a loaded machine is slow, not wrong.
TRIES = 1200


def until(page: Any, condition: Callable[[], Any]) -> None:
    """Wait until it holds; events of the page are handled between the tries. No such message yet: it does not."""
    for _ in range(TRIES):
        try:
            if condition():
                return
        except (IndexError, StopIteration):
            pass
        page.wait_for_timeout(TRY_MS)
    assert condition(), "it does not come true"


@dataclass
class Traffic:
    """What the page's next sessions send and receive; acks, audio and pictures apart."""

    sent: list[Message] = field(default_factory=list)
    received: list[Message] = field(default_factory=list)

    def listen(self, page: Any) -> None:
        page.on("websocket", self._follow)

    def _follow(self, socket: Any) -> None:
        socket.on("framesent", lambda payload: self._note(self.sent, payload))
        socket.on("framereceived", lambda payload: self._note(self.received, payload))

    def _note(self, messages: list[Message], payload: Any) -> None:
        if isinstance(payload, str) and (message := json.loads(payload))["type"] not in ("ack", "canvas"):
            messages.append(message)

    def of(self, kind: str, messages: list[Message] | None = None) -> list[Message]:
        """Of one kind, of those received if nothing else is said."""
        return [one for one in (self.received if messages is None else messages) if one["type"] == kind]

    def values(self, name: str) -> list[Any]:
        """What was sent of a control."""
        return [one["values"][name] for one in self.of("set", self.sent) if name in one["values"]]

    @property
    def prompts(self) -> list[Message]:
        """The prompts that were sent at last."""
        found: list[Message] = self.of("prompts", self.sent)[-1]["items"]
        return found


def opened(open_page: Callable[..., Any], url: str, **options: Any) -> tuple[Any, Traffic]:
    """The page, and what it and its server say from its session's first message on."""
    page, traffic = open_page(url, **options), Traffic()
    traffic.listen(page)
    page.reload()
    page.wait_for_selector("#status[data-status=live]")
    return page, traffic
