"""The OSC addresses of a live session, drawn from the JSON schema of its controls and the messages of the protocol."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from pydantic import BaseModel

from runtime.base.errors import RequestError, did_you_mean
from runtime.base.files import plain_name
from runtime.base.untrusted import quoted
from runtime.live.hosting.clients import Values
from runtime.live.protocol.messages import (
    CLIENT_MESSAGES,
    ClientMessage,
    LivePrompt,
    SetAdapter,
    SetPrompts,
    client_message,
)
from runtime.requests.option_types import MAX_PROMPTS
from server.protocols.osc.packets import Argument

# Messages of the protocol that are no addresses: `set` and `prompts` have one for each value, the others are those of
# the client that plays.
NO_ADDRESSES = ("open", "set", "prompts", "write", "mute", "ack", "canvas", "close")
NO_ARGUMENTS = ("type", "seq", "ramp_ms", "items")
REFERENCES = ("source", "structure", "timbre")
PROMPT = re.compile(r"prompt/([1-9][0-9]{0,2})/(text|weight)")
ADAPTER = re.compile(r"adapter/([^/]+)")
# A message's seq: the session gives it its own.
SEQ = 1


@dataclass(frozen=True)
class AddressKind:
    """What an argument is: an OSC type, its range or choices. takes_list: several arguments, too; is_list: always."""

    type: str
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] = ()
    takes_list: bool = False
    is_list: bool = False

    def one(self, argument: Argument) -> Any:
        """An argument as JSON; surfaces send every number as a float, and a choice as its index."""
        if not isinstance(argument, int | float) or not math.isfinite(argument):
            return argument
        if self.type == "f":
            return float(argument)
        number = round(argument)
        if self.type == "i":
            return number
        return self.choices[number] if 0 <= number < len(self.choices) else argument

    def value(self, name: str, arguments: Sequence[Argument]) -> Any:
        """The value of an address. Raises RequestError where there are too many arguments, or none."""
        values = [self.one(argument) for argument in arguments]
        if self.is_list or (self.takes_list and len(values) > 1):
            return values
        if len(values) != 1:
            raise RequestError(f"got {len(values)} arguments, expected 1", field=name, fix=f"ask /tickrt/{name}/?")
        return values[0]


@dataclass(frozen=True)
class Address:
    """An address below /tickrt. shows: the name of the value that it shows; read: its arguments, from that value.

    members: of the message that its arguments make.
    """

    name: str
    kinds: tuple[AddressKind, ...]
    members: Callable[[Values, Sequence[Argument]], Mapping[str, Any]]
    shows: str = ""
    read: Callable[[Any], Sequence[Argument]] = lambda value: _arguments(value)

    def message(self, arguments: Sequence[Argument], values: Values) -> ClientMessage | None:
        """What a session is sent; None for a button that is released. Raises RequestError."""
        if not self.kinds and arguments and not arguments[0]:
            return None
        return client_message(self.members(values, arguments))

    def description(self, values: Values) -> list[Argument]:
        """Its types, range, choices and value."""
        kind = self.kinds[0] if self.kinds else AddressKind("")
        types = "".join(kind.type for kind in self.kinds)
        shown = self.read(values.get(self.shows)) if self.shows else []
        return [types, kind.low, kind.high, "|".join(map(str, kind.choices)), *shown]


class AddressTable:
    """Every address. schema: of the controls, as in `ready`."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        found = [*_controls(schema), *_messages(schema), _blend(), _playing(), _muted(), _mode()]
        self._addresses = {address.name: address for address in found}

    def __len__(self) -> int:
        """How many every session has."""
        return len(self._addresses)

    def find(self, name: str) -> Address | None:
        """The address of a name, if there is one."""
        if (match := PROMPT.fullmatch(name)) is not None and int(match[1]) <= MAX_PROMPTS:
            return _prompt(int(match[1]), match[2])
        if (match := ADAPTER.fullmatch(name)) is not None:
            return _adapter(plain_name(match[1]))
        return self._addresses.get(name)

    def unknown(self, name: str) -> RequestError:
        """What is said where there is none; takes longer than to find one."""
        fix = did_you_mean(name, self._addresses) or "ask /tickrt/?"
        return RequestError(f"there is no address {quoted('/tickrt/' + name)}", fix=fix)

    def all(self, values: Values) -> list[Address]:
        """All addresses of a session: also of each prompt, and of each adapter in use."""
        return [*self._addresses.values(), *_listed(values)]

    def shown(self, before: Values, changed: Values) -> Iterator[tuple[str, Sequence[Argument]]]:
        """Names and arguments of the addresses that show something else now."""
        listed = {address.name: address for values in (before, changed) for address in _listed(values)}
        for address in (*self._addresses.values(), *listed.values()):
            if address.shows in changed and (arguments := address.read(changed[address.shows])):
                yield address.name, arguments


def _listed(values: Values) -> list[Address]:
    """The addresses of each prompt, and of each adapter in use."""
    prompts = [_prompt(1 + n, part) for n in range(len(values.get("prompts", ()))) for part in ("text", "weight")]
    return [*prompts, *(_adapter(item["id"]) for item in values.get("adapters", ()))]


def _arguments(value: Any) -> Sequence[Argument]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _kind(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> AddressKind | None:
    """What a JSON schema describes; None: neither a number nor a text, nor a list of these."""
    found = _branches(schema, definitions)
    items: Mapping[str, Any] = next(
        (one["items"] for one in found if one.get("type") == "array" and "type" in one["items"]), {}
    )
    plain = next((one for one in found if one.get("type") in ("number", "integer", "string")), None)
    one = plain or items
    type_ = {"number": "f", "integer": "i", "string": "s"}.get(one.get("type", ""))
    if type_ is None:
        return None
    low, high = (one.get(name, one.get(f"exclusive{name.capitalize()}")) for name in ("minimum", "maximum"))
    return AddressKind(type_, low, high, tuple(one.get("enum", ())), bool(items), plain is None)


def _branches(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    branches = schema.get("anyOf", [schema])
    return [definitions[one["$ref"].rpartition("/")[2]] if "$ref" in one else one for one in branches]


def _controls(schema: Mapping[str, Any]) -> Iterator[Address]:
    definitions = schema.get("$defs", {})
    for name, property_ in schema["properties"].items():
        inner = next((one for one in _branches(property_, definitions) if "properties" in one), None)
        if inner is None:
            kind = _kind(property_, definitions)
            if kind is not None:
                yield Address(name, (kind,), partial(_set, name, kind), shows=name)
            continue
        for member, part in inner["properties"].items():
            kind = _kind(part, definitions)
            assert kind is not None, "members of options are numbers and texts"
            change, read = partial(_set_member, name, member, kind), partial(_member, member)
            yield Address(f"{name}/{member}", (kind,), change, shows=name, read=read)


def _set(name: str, kind: AddressKind, values: Values, arguments: Sequence[Argument]) -> Mapping[str, Any]:
    is_default = list(arguments) == [None]
    return {"type": "set", "seq": SEQ, "values": {name: None if is_default else kind.value(name, arguments)}}


def _set_member(
    name: str, member: str, kind: AddressKind, values: Values, arguments: Sequence[Argument]
) -> Mapping[str, Any]:
    value = {**values[name], member: kind.value(f"{name}/{member}", arguments)}
    return {"type": "set", "seq": SEQ, "values": {name: value}}


def _member(member: str, value: Mapping[str, Any]) -> Sequence[Argument]:
    return _arguments(value[member])


def _messages(schema: Mapping[str, Any]) -> Iterator[Address]:
    for name, model in CLIENT_MESSAGES.items():
        is_untaken = name in ("structure", "timbre") and f"{name}_strength" not in schema["properties"]
        if name in NO_ADDRESSES or is_untaken:
            continue
        kinds = _member_kinds(model)
        members = partial(_message_members, name, "seq" in model.model_fields, kinds)
        shows = name if name in (*REFERENCES, "band") else ""
        read = _reference if name in REFERENCES else _arguments
        yield Address(name, tuple(kinds.values()), members, shows=shows, read=read)


@cache
def _member_kinds(model: type[BaseModel]) -> dict[str, AddressKind]:
    """Kinds of the members of a message that are arguments."""
    schema = model.model_json_schema()
    properties, definitions = schema["properties"], schema.get("$defs", {})
    kinds = {name: _kind(member, definitions) for name, member in properties.items() if name not in NO_ARGUMENTS}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _message_members(
    name: str, has_seq: bool, kinds: Mapping[str, AddressKind], values: Values, arguments: Sequence[Argument]
) -> Mapping[str, Any]:
    """The arguments are the members in their order; what is missing, or an empty text, is null."""
    if len(arguments) > max(1, len(kinds)):
        raise RequestError(f"got {len(arguments)} arguments, expected at most {len(kinds)}", field=name)
    given = [*arguments, *[None] * len(kinds)]
    pairs = zip(kinds.items(), given, strict=False)
    members = {key: None if argument == "" else kind.one(argument) for (key, kind), argument in pairs}
    return {"type": name, **({"seq": SEQ} if has_seq else {}), **members}


def _reference(value: Mapping[str, Any] | None) -> Sequence[Argument]:
    if value is None:
        return [""]
    return [value["id"] or "", *_arguments(value["strength"])]


def _playing() -> Address:
    def members(values: Values, arguments: Sequence[Argument]) -> Mapping[str, Any]:
        return {"type": "play" if kind.value("playing", arguments) else "pause"}

    kind = AddressKind("i", 0, 1)
    return Address("playing", (kind,), members, shows="playing", read=lambda value: [int(value)])


def _muted() -> Address:
    """The layers that are silent; an empty text where all sound."""
    kind = AddressKind("s", is_list=True)

    def members(values: Values, arguments: Sequence[Argument]) -> Mapping[str, Any]:
        names = kind.value("muted", [name for name in arguments if name not in (None, "")])
        return {"type": "mute", "seq": SEQ, "layers": names}

    return Address("muted", (kind,), members, shows="muted", read=lambda value: value or [""])


def _mode() -> Address:
    def members(values: Values, arguments: Sequence[Argument]) -> Mapping[str, Any]:
        raise RequestError("a session keeps its mode", field="mode", fix="open another session")

    return Address("mode", (AddressKind("s"),), members, shows="mode")


def _blend() -> Address:
    kind = _member_kinds(SetPrompts)["blend"]

    def members(values: Values, arguments: Sequence[Argument]) -> Mapping[str, Any]:
        return {"type": "prompts", "seq": SEQ, "items": values["prompts"], "blend": kind.value("blend", arguments)}

    return Address("blend", (kind,), members, shows="blend")


def _prompt(number: int, part: str) -> Address:
    """The text or the weight of a prompt; a text may be one more than there are."""
    name = f"prompt/{number}/{part}"
    kind = _member_kinds(LivePrompt)[part]

    def members(values: Values, arguments: Sequence[Argument]) -> Mapping[str, Any]:
        items = [dict(item) for item in values["prompts"]]
        if number > len(items) + (part == "text"):
            fix = f"send /tickrt/prompt/{len(items) + 1}/text"
            raise RequestError(f"there are {len(items)} prompts", field=name, fix=fix)
        items += [{}] * (number - len(items))
        items[number - 1] = {**items[number - 1], part: kind.value(name, arguments)}
        return {"type": "prompts", "seq": SEQ, "items": items}

    def read(value: Sequence[Mapping[str, Any]]) -> Sequence[Argument]:
        return [value[number - 1][part]] if number <= len(value) else []

    return Address(name, (kind,), members, shows="prompts", read=read)


def _adapter(adapter_id: str) -> Address:
    """The strength of an adapter; 0 where it is not in use."""
    kind = _member_kinds(SetAdapter)["strength"]

    def members(values: Values, arguments: Sequence[Argument]) -> Mapping[str, Any]:
        strength = kind.value(f"adapter/{adapter_id}", arguments)
        return {"type": "adapter", "seq": SEQ, "id": adapter_id, "strength": strength}

    def read(value: Sequence[Mapping[str, Any]]) -> Sequence[Argument]:
        return [next((item["strength"] for item in value if item["id"] == adapter_id), 0.0)]

    return Address(f"adapter/{adapter_id}", (kind,), members, shows="adapters", read=read)
