"""Firefox without a window, driven by the protocol that it speaks itself: https://w3c.github.io/webdriver-bidi/.

Its sound goes to a PulseAudio server of its own, with an output that is silent: without an output no AudioContext runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("firefox", "firefox-esr")
PULSEAUDIO = (
    "pulseaudio",
    "--daemonize=no",
    "--exit-idle-time=-1",
    "--disable-shm",
    "-n",
    "-L",
    "module-null-sink",
    "-L",
)
START_S = 60.0
# Sound; no first-run pages, no updates, nothing that asks other hosts.
PREFERENCES = {
    "app.normandy.enabled": False,
    "app.update.disabledForTesting": True,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage": "about:blank",
    "datareporting.policy.dataSubmissionEnabled": False,
    "extensions.systemAddon.update.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "data:,",
    "toolkit.telemetry.enabled": False,
}


def firefox_path() -> str | None:
    """The Firefox of this machine, if it has one, and what its sound goes to."""
    return next(filter(None, map(shutil.which, NAMES)), None) if shutil.which("pulseaudio") else None


class FirefoxPage:
    """One tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self.errors: list[str] = []
        self._connection = connection
        self._found: dict[tuple[str, str], dict[str, Any]] = {}
        self._count = 0
        self.send("session.new", {"capabilities": {}})
        self.send("session.subscribe", {"events": ["log.entryAdded"]})
        self._context = self.send("browsingContext.getTree", {})["contexts"][0]["context"]

    def send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """One command and its result. Raises RuntimeError with what the browser says."""
        self._count += 1
        self._connection.send(json.dumps({"id": self._count, "method": method, "params": params}))
        while True:
            answer = json.loads(self._connection.recv(timeout=START_S))
            if answer["type"] == "event" and answer["params"].get("level") == "error":
                self.errors.append(answer["params"]["text"])
            if answer.get("id") == self._count:
                if answer["type"] == "error":
                    raise RuntimeError(f"{method}: {answer['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, url: str) -> None:
        """Go to an address, until it is loaded."""
        self._found.clear()
        self.send("browsingContext.navigate", {"context": self._context, "url": url, "wait": "complete"})

    def prepare(self, script: str) -> None:
        """Run a script in every page that is opened from now on, before the page's own."""
        self.send("script.addPreloadScript", {"functionDeclaration": f"() => {{ {script} }}"})

    def evaluate(self, expression: str) -> Any:
        """What an expression is worth: a text, a number, a truth value or null."""
        target = {"expression": expression, "awaitPromise": True, "target": {"context": self._context}}
        answer = self.send("script.evaluate", target)
        if answer["type"] == "exception":
            raise RuntimeError(answer["exceptionDetails"]["text"])
        return answer["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = START_S) -> None:
        """Until an expression is true. Raises TimeoutError."""
        end = time.monotonic() + timeout_s
        while self.evaluate(expression) is not True:
            if time.monotonic() > end:
                raise TimeoutError(f"not true in {timeout_s:g} s: {expression}")
            time.sleep(0.1)

    def find(self, role: str, name: str) -> dict[str, Any]:
        """The element with this role and name, as assistive technology has them. Raises LookupError."""
        # Firefox takes seconds to name all elements: each is looked for once.
        if (role, name) in self._found:
            return self._found[role, name]
        locator = {"type": "accessibility", "value": {"role": role, "name": name}}
        nodes = self.send("browsingContext.locateNodes", {"context": self._context, "locator": locator})["nodes"]
        if len(nodes) != 1:
            raise LookupError(f"{len(nodes)} elements are a {role} with the name {name!r}")
        return self._found.setdefault((role, name), {"sharedId": nodes[0]["sharedId"]})

    def call(self, function: str, role: str, name: str) -> Any:
        """What a function returns for the element with this role and name."""
        arguments = {"functionDeclaration": function, "arguments": [self.find(role, name)], "awaitPromise": True}
        answer = self.send("script.callFunction", {**arguments, "target": {"context": self._context}})
        if answer["type"] == "exception":
            raise RuntimeError(answer["exceptionDetails"]["text"])
        return answer["result"].get("value")

    def click(self, role: str, name: str) -> None:
        """Click in the middle of the element with this role and name, as a mouse does."""
        self.call("(element) => element.scrollIntoView({ block: 'center' })", role, name)
        origin = {"type": "element", "element": self.find(role, name)}
        move = {"type": "pointerMove", "x": 0, "y": 0, "origin": origin}
        actions = [move, {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._perform({"type": "pointer", "id": "mouse", "actions": actions})

    def press(self, role: str, name: str, key: str) -> None:
        """Focus the element with this role and name, and press a key: its WebDriver code."""
        self.call("(element) => element.focus()", role, name)
        self._perform(
            {"type": "key", "id": "keys", "actions": [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]}
        )

    def drag(self, role: str, name: str, by_y: int) -> None:
        """Drag the element with this role and name up (negative) or down, in pixels."""
        self.call("(element) => element.scrollIntoView({ block: 'center' })", role, name)
        origin = {"type": "element", "element": self.find(role, name)}
        steps = [
            {"type": "pointerMove", "x": 0, "y": by_y * i // 4, "origin": origin, "duration": 20} for i in range(5)
        ]
        actions = [steps[0], {"type": "pointerDown", "button": 0}, *steps[1:], {"type": "pointerUp", "button": 0}]
        self._perform({"type": "pointer", "id": "mouse", "actions": actions})

    def _perform(self, source: dict[str, Any]) -> None:
        self.send("input.performActions", {"context": self._context, "actions": [source]})


@contextmanager
def _silent_output(folder: Path) -> Iterator[dict[str, str]]:
    """An environment with a sound server whose output is silent, in real time."""
    address = folder / "sound.socket"
    module = f"module-native-protocol-unix socket={address} auth-anonymous=1"
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    with subprocess.Popen([*PULSEAUDIO, module], env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + START_S
            while not address.exists():
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError("pulseaudio does not start")
                time.sleep(0.05)
            yield {**os.environ, "PULSE_SERVER": f"unix:{address}"}
        finally:
            process.terminate()


@contextmanager
def firefox_page(path: str, folder: Path) -> Iterator[FirefoxPage]:
    """A tab of a Firefox of its own, whose profile is in `folder`."""
    profile = folder / "profile"
    profile.mkdir()
    lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in PREFERENCES.items()]
    (profile / "user.js").write_text("\n".join(lines), encoding="utf-8")
    command = [
        path,
        "--headless",
        "--no-remote",
        "--profile",
        str(profile),
        "--remote-debugging-port",
        "0",
        "about:blank",
    ]
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with (
        _silent_output(folder) as environment,
        subprocess.Popen(command, env=environment, text=True, **output) as process,
    ):
        try:
            assert process.stderr is not None
            found = (re.search(r"WebDriver BiDi listening on (ws://\S+)", line) for line in process.stderr)
            address = next(filter(None, found))[1]
            with connect(f"{address}/session", max_size=None) as connection:
                yield FirefoxPage(connection)
        finally:
            process.terminate()
