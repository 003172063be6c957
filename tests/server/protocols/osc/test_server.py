"""OSC surfaces on a real server, with python-osc's own client; a server without sockets for limits."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.compat_readme import shown
from helpers.http_harness import Served, serving
from helpers.live_player import is_audio, player
from hypothesis import given, settings
from hypothesis import strategies as st
from pythonosc.osc_bundle_builder import IMMEDIATELY, OscBundleBuilder
from pythonosc.osc_message import OscMessage
from pythonosc.osc_message_builder import build_msg
from pythonosc.udp_client import SimpleUDPClient

from runtime.base.errors import ConfigError
from runtime.config.deployment import Deployment
from runtime.live.protocol.server_messages import Applied, Changed, Problem, State
from server.app import open_osc
from server.config import ServerSettings
from server.live.connection import MAX_PROBLEMS
from server.protocols.osc.server import MAX_SURFACES, SURFACE_KEEP_S, OscServer, open_udp_socket
from server.protocols.osc.turns import BYTES_PER_MESSAGE

TIMEOUT_S = 60.0
END = "/tickrt/?/end"


class Surface:
    """python-osc's client, with an address of its own; `until` keeps what arrives before."""

    numbers = count(1)

    def __init__(self, port: int) -> None:
        self.client = SimpleUDPClient("127.0.0.1", port, family=socket.AF_INET)
        self.client._sock.bind(("127.8.{}.{}".format(*divmod(next(self.numbers), 250)), 0))
        self.received: list[OscMessage] = []

    def send(self, address: str, *arguments: Any) -> None:
        self.client.send_message(address, list(arguments))

    def until(self, address: str) -> list[Any]:
        """Receive up to a message of this address; its arguments."""
        while data := self.client.receive(TIMEOUT_S):
            self.received.append(OscMessage(data))
            if self.received[-1].address == address:
                return self.received[-1].params
        raise AssertionError(f"{address} did not come, but {[message.address for message in self.received]}")

    def of(self, address: str) -> list[list[Any]]:
        return [message.params for message in self.received if message.address == address]

    def ask_all(self) -> dict[str, list[Any]]:
        """Address -> types, range, choices, values."""
        self.received.clear()
        self.send("/tickrt/?")
        (count,) = self.until(END)
        found = {params[0]: params[1:] for params in self.of("/tickrt/?")}
        assert len(found) == count
        return found


@pytest.fixture(scope="module")
def served(tiny: Callable[..., Deployment]) -> Iterator[Served]:
    with serving(tiny(), osc_port=0, client_sessions=0, max_refresh_s=1e6) as server:
        yield server


@pytest.fixture
def surface(served: Served) -> Iterator[Surface]:
    surface = Surface(osc_port(served))
    with closing(surface.client):
        yield surface


def osc_port(served: Served) -> int:
    assert isinstance(served.app.state.osc, OscServer)
    return served.app.state.osc.port


def is_changed(item: Any) -> bool:
    return isinstance(item, Changed)


def test_a_surface_turns_what_the_page_plays_and_shows_what_the_page_turns(served: Served, surface: Surface) -> None:
    with player(served) as page:
        ready = page.open(prompts=[{"text": "a"}], seed=3)
        page.receive_until(is_audio)
        for guidance in (4.0, 5.0):
            surface.send("/tickrt/guidance", guidance)
        assert surface.until("/tickrt/session") == [ready.session]
        assert page.receive_until(lambda item: is_changed(item) and item.values["guidance"] == 5.0)
        page.send(type="set", seq=1, values={"shift": 2.5})
        assert surface.until("/tickrt/shift")  # all values, as the surface is new
        assert surface.until("/tickrt/shift") == [2.5]
        assert surface.of("/tickrt/guidance")[0][0] in (4.0, 5.0)
        applied = [page.receive_until(lambda item: isinstance(item, Applied) and item.full_sample is not None)]
        while page.chunks[-1].full_seq != 1:
            page.receive()
        applied += [message for message in page.messages if isinstance(message, Applied)]
        assert {message.seq for message in applied} == {1}
        assert not [message for message in page.messages if isinstance(message, Problem)]


def test_every_address_takes_the_value_that_it_shows(served: Served, surface: Surface) -> None:
    with player(served) as page:
        page.open(prompts=[{"text": "a"}, {"text": "b", "weight": 0.0}], seed=3)
        page.receive_until(is_audio)
        found = surface.ask_all()
        assert {"/tickrt/guidance", "/tickrt/dcw/low", "/tickrt/prompt/2/weight", "/tickrt/seek"} <= found.keys()
        schema = page.ready.controls.json_schema["properties"].keys() - {"adapters"}
        assert schema <= {path.removeprefix("/tickrt/").partition("/")[0] for path in found}
        assert found["/tickrt/guidance"] == ["f", 0.0, 50.0, "", 2.0]
        assert found["/tickrt/solver"] == ["s", None, None, "ode|sde|ab2", "ode"]
        assert found["/tickrt/mode"][-1] == "loop"
        for path, (_, _, _, _, *values) in found.items():
            if values and path != "/tickrt/mode":
                surface.send(path, *values)
        surface.ask_all()
        assert surface.of("/tickrt/error") == []


def test_surfaces_see_each_other_and_other_sessions_by_their_id(served: Served, surface: Surface) -> None:
    other = Surface(osc_port(served))
    with closing(other.client), player(served) as first, player(served) as second:
        older, newer = (client.open(prompts=[{"text": "a"}]).session for client in (first, second))
        surface.send("/tickrt/guidance/?")
        assert surface.until("/tickrt/guidance") == [2.0]
        other.send("/tickrt/guidance", 6.0)
        assert surface.until("/tickrt/guidance") == [6.0]
        assert other.until("/tickrt/session") == [newer]
        path = f"/tickrt/session/{older}/guidance"
        other.send(path, 7.0)
        assert other.until(path) == [7.0]
        assert first.receive_until(is_changed).values == {"guidance": 7.0}
        assert second.receive_until(is_changed).values == {"guidance": 6.0}
        second.send(type="close")
        second.receive_end()
        assert surface.until("/tickrt/session") == [older]
        assert surface.until("/tickrt/guidance") == [7.0]


@pytest.mark.parametrize(
    ("address", "arguments", "words"),
    [
        ("/tickrt/gudance", [1.0], "did you mean guidance"),
        ("/tickrt/guidance", [99.0], "^values.guidance: .*50"),
        ("/tickrt/guidance", ["loud"], "values.guidance: "),
        ("/tickrt/guidance", [float("nan")], "values.guidance: "),
        ("/tickrt/guidance", [float("inf")], "values.guidance: "),
        ("/tickrt/guidance", [b"blob"], "types i, h, f"),
        ("/tickrt/guidance", [[[1.0]]], "types i, h, f"),
        ("/tickrt/guidance", [], "got 0 arguments"),
        ("/tickrt/solver", [9.0], "values.solver: "),
        ("/tickrt/solver", ["ode", "sde"], "got 2 arguments"),
        ("/tickrt/steps", [float("inf")], "values.steps: "),
        ("/tickrt/seek", [-1.0], "to_s: "),
        ("/tickrt/seek", [1.0, 2.0, 3.0], "at most 2"),
        ("/tickrt/band", [3.0, 1.0], "start_s < end_s"),
        ("/tickrt/mode", ["extend"], "keeps its mode"),
        ("/tickrt/prompt/1/weight", [-1.0], "weight: "),
        ("/tickrt/prompt/7/weight", [1.0], "there are 1 prompts"),
        ("/tickrt/prompt/9/text", ["a"], "no address"),
        ("/tickrt/adapter/none", [1.0], "adapter"),
        ("/tickrt/source", ["none"], "^id: there is no source"),
        ("/tickrt/session/none/guidance", [1.0], "no such live session"),
        ("/tickrt/\x01\n", [1.0], "no address"),
        ("/tickrt/prompt/1/text", [1.0], "text: "),
        ("/tickrt/prompt/2/weight", [1.0], "there are 1 prompts"),
        ("/tickrt/seek", ["a"], "to_s: "),
        ("/tickrt/play", [1.0, 1.0], "got 2 arguments"),
        ("/tickrt/blend", [7.0], "blend: "),
    ],
)
def test_a_wrong_message_is_an_error_and_nothing_else(
    served: Served, surface: Surface, open_session: Any, address: str, arguments: list[Any], words: str
) -> None:
    before = surface.ask_all()
    surface.send(address, *arguments)
    (text,) = surface.until("/tickrt/error")
    assert re.search(words, text)
    assert surface.ask_all() == before


@pytest.fixture(scope="module")
def open_session(served: Served) -> Iterator[str]:
    with player(served) as page:
        yield page.open(prompts=[{"text": "a"}], seed=3).session


def bundle(*contents: Any) -> Any:
    builder = OscBundleBuilder(IMMEDIATELY)
    for content in contents:
        builder.add_content(content)
    return builder.build()


def test_a_bundle_is_taken_whole(surface: Surface, open_session: str) -> None:
    inner = bundle(build_msg("/tickrt/shift", 1.25), build_msg("/other/program", 1.0))
    whole = bundle(build_msg("/tickrt/guidance", 2.5), inner, build_msg("/tickrt/steps", 3))
    surface.client.send(whole)
    found = surface.ask_all()
    assert [found[f"/tickrt/{name}"][-1] for name in ("guidance", "shift", "steps")] == [2.5, 1.25, 3]
    nested = inner.dgram
    for _ in range(400):  # deeper than python-osc's own parser goes
        nested = b"#bundle\0" + bytes(8) + len(nested).to_bytes(4, "big") + nested
    endless = b"#bundle\0" + bytes(8) + (-4 % 2**32).to_bytes(4, "big")  # where its parser stays for ever
    for packet in (nested, endless):
        surface.client._sock.sendto(packet, ("127.0.0.1", surface.client._port))
    assert "wrong size" in surface.until("/tickrt/error")[0]
    assert surface.ask_all() == found
    surface.client._sock.sendto(bytes(40_000), ("127.0.0.1", surface.client._port))
    surface.client._sock.sendto(b"#bundle\0" + bytes(30_000), ("127.0.0.1", surface.client._port))
    assert "at most" in surface.until("/tickrt/error")[0]
    assert surface.ask_all() == found


GOOD = bundle(build_msg("/tickrt/guidance", 1.0), build_msg("/tickrt/prompt/1/text", "a")).dgram
DAMAGED = st.tuples(st.integers(0, len(GOOD) - 1), st.binary(max_size=4)).map(
    lambda edit: GOOD[: edit[0]] + edit[1] + GOOD[edit[0] + len(edit[1]) :]
)
PACKETS = st.one_of(
    st.binary(max_size=60),
    st.binary(max_size=60).map(lambda rest: b"/tickrt" + rest),
    st.binary(max_size=60).map(lambda rest: b"/tickrt/guidance\0\0\0\0," + rest),
    st.binary(max_size=60).map(lambda rest: b"#bundle\0" + bytes(8) + rest),
    DAMAGED,
)


@settings(max_examples=60, deadline=None)
@given(packets=st.lists(PACKETS, max_size=5))
def test_no_packet_harms_the_server(served: Served, open_session: str, packets: list[bytes]) -> None:
    surface = Surface(osc_port(served))
    with closing(surface.client):
        for packet in packets:
            surface.client._sock.sendto(packet, ("127.0.0.1", surface.client._port))
        surface.send("/tickrt/guidance/?")
        surface.until("/tickrt/guidance/?")
    assert served.service.host is not None
    assert open_session in [info.id for info in served.service.host.sessions() if info.is_connected]


def test_without_a_session_the_error_says_so(tiny: Callable[..., Deployment]) -> None:
    with serving(tiny(), osc_port=0) as served, closing((surface := Surface(osc_port(served))).client):
        surface.send("/tickrt/guidance", 1.0)
        assert "open the page" in surface.until("/tickrt/error")[0]
        surface.send("/tickrt/error", "no answer to an answer")
        surface.send("/tickrtx/guidance", 1.0)
        with player(served) as page:
            session = page.open(prompts=[{"text": "a"}]).session
            surface.send("/tickrt/guidance", 2.0)
            assert surface.until("/tickrt/session") == [session]
        assert len(surface.of("/tickrt/error")) == 1


def test_the_program_of_the_readme_runs(served: Served, open_session: str, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = shown("OSC", "python")
    assert "9001" in program
    names: dict[str, Any] = {}
    exec(compile(program.replace("9001", str(osc_port(served))), "README.md", "exec"), names)
    names["surface"].close()
    assert "/tickrt/guidance [5.0]" in capsys.readouterr().out


# Limits, without sockets.


class Host:
    """Counts what is asked of it."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.joined: list[Any] = []
        self.changes: list[Any] = []
        self.senders: list[Any] = []

    def sessions(self) -> list[Any]:
        return [SimpleNamespace(id="one", is_connected=True)]

    def join(self, session: str, listener: Any) -> None:
        self.joined.append(listener)

    def leave(self, session: str, listener: Any) -> None:
        self.joined.remove(listener)

    def change(self, session: str, change: Any, sender: Any) -> None:
        self.changes.append(change)
        self.senders.append(sender)


class Limited:
    """A server without a socket, of a host that does nothing, with a clock that the test sets."""

    def __init__(self, model: Any) -> None:
        self.host, self.now_s = Host(model), 0.0
        self.sent: list[tuple[Any, bytes]] = []
        self.server = OscServer("127.0.0.1", 0, clock=lambda: self.now_s)
        self.server._serve = partial(asyncio.sleep, 0)  # type: ignore[method-assign]
        self.server.start(self.host)  # type: ignore[arg-type]
        self.server.call = lambda function: function()  # type: ignore[method-assign]
        self.server._transport = SimpleNamespace(  # type: ignore[assignment]
            sendto=lambda data, peer: self.sent.append((peer, data)), is_closing=lambda: False, close=lambda: None
        )

    def receive(self, packet: bytes, host: str = "127.0.0.1", port: int = 1) -> None:
        """A packet arrives."""
        self.server.datagram_received(packet, (host, port))

    def pass_time(self, seconds: float) -> None:
        """Do what there is time for."""
        for _ in range(round(1000 * seconds)):
            self.now_s += 0.001
            for _ in range(10):
                self.server.turns.run()

    def answers(self, host: str = "127.0.0.1") -> list[OscMessage]:
        """What was sent to an address."""
        return [OscMessage(data) for peer, data in self.sent if peer[0] == host]

    def errors(self) -> list[str]:
        return [message.params[0] for message in self.answers() if message.address == "/tickrt/error"]


@pytest.fixture
def limited(served: Served) -> Iterator[Limited]:
    with asyncio.Runner() as runner:

        async def make() -> Limited:
            assert served.service.host is not None
            made = Limited(served.service.host.model)
            made.server.turns._go_on = lambda: None  # type: ignore[method-assign]  # by `pass_time`
            return made

        made = runner.run(make())
        yield made
        made.server.close()


KNOB, ALL = build_msg("/tickrt/guidance", 1.0).dgram, build_msg("/tickrt/?").dgram
HONEST = "127.0.0.2"


def test_messages_of_an_address_are_counted_however_they_are_packed_and_whatever_port_they_are_of(
    limited: Limited,
) -> None:
    knobs = bundle(*[build_msg("/tickrt/guidance", 1.0)] * 300).dgram
    for number in range(2000):
        limited.receive(knobs if number % 2 else KNOB, port=number % 300)
        limited.pass_time(0.001)
    assert 1500 < len(limited.host.changes) <= 3000
    assert 1 <= len(limited.errors()) <= MAX_PROBLEMS
    assert "more than 1000 messages a second" in limited.errors()[0]
    limited.pass_time(1.0)
    num_changes = len(limited.host.changes)
    limited.receive(KNOB)
    limited.pass_time(0.01)
    assert len(limited.host.changes) == num_changes + 1


def test_a_query_counts_as_many_as_it_has_answers_and_these_by_their_bytes(limited: Limited) -> None:
    dcw = {"mode": "double", "low": 0.0, "high": 0.1}
    values = {"dcw": dcw, "playing": True, "prompts": [{"text": 1900 * "a", "weight": 1.0}]}
    for _ in range(100):
        limited.receive(bundle(*[build_msg("/tickrt/?")] * 600).dgram)
        limited.pass_time(0.02)
        while limited.host.changes:
            limited.host.changes.pop()(values)
    num_bytes = sum(len(data) for _, data in limited.sent)
    assert 100_000 < num_bytes < 3.2 * 1000 * BYTES_PER_MESSAGE


@pytest.mark.parametrize("sent", [KNOB, ALL, bundle(*[build_msg("/tickrt/?")] * 600).dgram, b"#bundle\0" + bytes(9000)])
def test_who_sends_little_is_next_though_many_addresses_send_much(limited: Limited, sent: bytes) -> None:
    waits_s = []
    for number in range(20):
        for index in range(300):
            limited.receive(sent, f"127.1.0.{1 + index % 50}", 1000 * number + index)
        limited.host.changes.clear()
        limited.receive(build_msg("/tickrt/shift", 2.0).dgram, HONEST)
        began_s = limited.now_s
        while not any(made.peer[0] == HONEST for made in limited.host.senders) and limited.now_s < began_s + 2.0:
            limited.pass_time(0.001)
        waits_s.append(limited.now_s - began_s)
        limited.host.senders.clear()
        limited.pass_time(0.05)
    assert max(waits_s) < 0.2


def test_an_address_with_many_surfaces_makes_room_with_its_own(limited: Limited) -> None:
    limited.receive(ALL, HONEST)
    for port in range(3 * MAX_SURFACES):
        limited.receive(ALL, port=port)
        limited.pass_time(0.2)
    assert len(limited.host.joined) == MAX_SURFACES
    assert HONEST in {surface.peer[0] for surface in limited.host.joined}


def test_surfaces_that_are_silent_are_forgotten(limited: Limited) -> None:
    for port in (1, 2):
        limited.receive(ALL, port=port)
    limited.pass_time(0.5)
    limited.now_s = SURFACE_KEEP_S - 1.0
    limited.receive(ALL, port=1)
    limited.pass_time(0.5)
    limited.now_s = SURFACE_KEEP_S + 1.0
    limited.server.follow()
    assert [surface.peer for surface in limited.host.joined] == [("127.0.0.1", 1)]
    assert limited.server._places.used == 1


def test_of_what_changes_while_an_address_has_no_turn_it_is_shown_the_last(limited: Limited) -> None:
    limited.receive(KNOB)
    limited.pass_time(0.1)
    (surface,) = limited.host.joined
    for value in range(1000):
        surface.receive(Changed(values={"prompts": [], "guidance": float(value)}))
    limited.pass_time(0.1)
    assert [message.params for message in limited.answers() if message.address == "/tickrt/guidance"] == [[999.0]]


def test_what_others_change_all_the_time_does_not_keep_a_surface_from_turning_anything(limited: Limited) -> None:
    for index in range(50):
        limited.receive(KNOB, f"127.1.0.{1 + index}")
    limited.receive(KNOB, HONEST)
    limited.pass_time(0.5)
    limited.host.changes.clear()
    for number in range(1000):
        for surface in limited.host.joined:
            surface.receive(Changed(values={"prompts": [], "guidance": float(number)}))
        if number % 100 == 50:
            limited.receive(KNOB, HONEST)
        limited.pass_time(0.001)
    assert len(limited.host.changes) == 10


def test_an_adapter_that_is_taken_away_again_is_shown_at_0(limited: Limited) -> None:
    limited.receive(ALL)
    limited.pass_time(0.1)
    (surface,) = limited.host.joined
    for adapters in ([], [{"id": "warm", "strength": 0.5}], []):
        surface.receive(Changed(values={"prompts": [], "adapters": adapters}))
        limited.pass_time(0.1)
    shown = [message.params for message in limited.answers() if message.address == "/tickrt/adapter/warm"]
    assert shown == [[0.5], [0.0]]


def test_answers_go_where_the_setting_says() -> None:
    sent: list[Any] = []
    server = OscServer("127.0.0.1", 0, reply_port=9000)
    server._transport = SimpleNamespace(  # type: ignore[assignment]
        sendto=lambda data, peer: sent.append(peer), is_closing=lambda: False, close=lambda: None
    )
    server.send(("127.0.0.1", 5), "/tickrt/guidance", [1.0])
    server.close()
    assert sent == [("127.0.0.1", 9000)]


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.1"])
def test_an_address_that_cannot_be_opened(host: str) -> None:
    with pytest.raises(ConfigError):
        open_udp_socket(host, 0)


def test_a_port_in_use() -> None:
    with closing(open_udp_socket("127.0.0.1", 0)) as first:
        port: Sequence[Any] = first.getsockname()
        with pytest.raises(ConfigError, match="is in use"):
            OscServer("127.0.0.1", port[1])


def test_osc_without_its_package_is_a_config_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "server.protocols.osc.server", None)
    assert open_osc(ServerSettings()) is None
    with pytest.raises(ConfigError) as error:
        open_osc(ServerSettings(osc_port=0))
    assert "tickrt[osc]" in error.value.fix


def test_a_surface_gets_the_beat(served: Served, surface: Surface) -> None:
    with player(served) as page:
        page.open(prompts=[{"text": "a, 240 bpm"}], seed=3)
        page.receive_until(is_audio)
        surface.send("/tickrt/guidance", 4.0)
        page.receive_until(lambda item: isinstance(item, State) and item.sent_until_sample)
        bpm, beats, bar, phase, sample = surface.until("/tickrt/beat")
    assert (bpm, beats, bar) == (240.0, 4, 0)
    assert 0 <= phase < 1
    assert sample >= 0
