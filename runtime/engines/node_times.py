"""How long each node of a compiled graph takes, as the engines' own profilers say."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from runtime.base.errors import EngineError

KERNEL_SUFFIX = "_kernel_time"
RUN, BODY = "model_run", "SequentialExecutor::Execute"
FACTS = ("provider", "node_index", "input_type_shape", "output_type_shape")
# How a trace writes an event's begin, at that of a line, its name and its arguments.
BEGIN, NAME, ARGUMENTS = '{"cat"', '"name" :"', '","args" : {'
# ONNX Runtime's profiler keeps a million events.
FIX_EVENTS = "measure less at once: fewer --frames or --rows, and --runs 5, which is one execute at a time"


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """One node of a compiled graph: its operator, and its time in each of several executes, in milliseconds.

    The time of a node with bodies (If, Loop, Scan) is without that of its bodies, so that times add up. `facts`:
    the library's own description of the node: a TensorRT layer's record of the engine inspector, or the arguments of
    ONNX Runtime's trace event. path: names of the nodes whose bodies it is in, outermost first. calls: how often it
    runs in an execute of the graph.
    """

    name: str
    op_type: str
    runs_ms: tuple[float, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    calls: float = 1.0

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from the graph's other nodes."""
        return (*self.path, self.name, self.op_type)


def trace_events(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The events in ONNX Runtime's trace, with what is used of them. Raises EngineError where one is damaged."""
    shared: dict[str, dict[str, Any]] = {}
    events, record = [], list[str]()
    for line in chain(lines, (BEGIN,)):
        if record and line.startswith(BEGIN):
            events.append(_event("".join(record), shared))
            record.clear()
        if record or line.startswith(BEGIN):
            record.append(line)
    return events


def _event(record: str, shared: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One event; a trace has up to a million, most with arguments that others have, too.

    Releases such as 1.23 write names as the graph has them, with quotes and line ends: they are escaped here.
    """
    text = record.rstrip("],\r\n ")
    try:
        try:
            event = json.loads(text)
        except ValueError:
            head, name_mark, rest = text.partition(NAME)
            name, arguments_mark, tail = rest.rpartition(ARGUMENTS)
            event = json.loads(head + name_mark[:-1] + json.dumps(name) + arguments_mark[1:] + tail)
    except ValueError as error:
        what = f"ONNX Runtime's profile cannot be read: it does not escape the names of nodes ({error})"
        raise EngineError(what, fix="pip install --upgrade onnxruntime") from None
    arguments = event.get("args", {})
    used = {key: arguments[key] for key in ("op_name", *FACTS) if key in arguments}
    event["args"] = shared.setdefault(repr(used), used)
    return dict(event)


def trace_node_times(events: Sequence[Mapping[str, Any]], warm_up: int, runs: int) -> tuple[NodeTimes, ...]:
    """Node times from ONNX Runtime's trace events (us), as written, without the first `warm_up` executes.

    Raises EngineError where the profiler did not keep all executes.
    """
    starts = sorted(event["ts"] for event in events if event["name"] == RUN)
    if len(starts) < warm_up + runs:
        kept = f"ONNX Runtime's profiler kept {len(starts)} of {warm_up + runs} executes: the graph has too many events"
        raise EngineError(kept, fix=FIX_EVENTS)
    times: dict[tuple[object, ...], list[float]] = {}
    first: dict[tuple[object, ...], NodeTimes] = {}
    for event, own_us, path in sorted(_own_times(events), key=lambda found: (found[0]["ts"], len(found[2]))):
        run = bisect_right(starts, event["ts"]) - 1 - warm_up
        if run < 0:
            continue
        name, arguments = event["name"].removesuffix(KERNEL_SUFFIX), event["args"]
        facts = {key: arguments[key] for key in FACTS if key in arguments}
        node = NodeTimes(name, arguments["op_name"], (), facts, path)
        first.setdefault(node.key, node)
        times.setdefault(node.key, [0.0] * (runs + 1))[run] += own_us / 1e3
        times[node.key][runs] += 1
    return tuple(
        replace(node, runs_ms=tuple(times[key][:runs]), calls=times[key][runs] / runs) for key, node in first.items()
    )


def _own_times(
    events: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], float, tuple[str, ...]]]:
    """Each node's event, its time without that of bodies, and the nodes whose bodies it is in; last ones first.

    An event is written when it ends: before that of a node with bodies come, for every body that ran, its nodes' and
    one of its own. What passes between nodes is in no layer, in a body as in the graph: most of it is the profiler's.
    """
    around: list[tuple[Mapping[str, Any], list[float]]] = []
    for event, before in zip(reversed(events), [*reversed(events[:-1]), {}], strict=True):
        is_node = event.get("cat") == "Node" and event["name"].endswith(KERNEL_SUFFIX)
        if not is_node and event["name"] != BODY:
            continue
        while around and event["ts"] < around[-1][0]["ts"]:
            yield _closed(around)
        if is_node:
            around.append((event, [event["dur"]]))
            if before.get("name") != BODY or before["ts"] < event["ts"]:
                yield _closed(around)
        elif around:
            around[-1][1][0] -= event["dur"]
    while around:
        yield _closed(around)


def _closed(
    around: list[tuple[Mapping[str, Any], list[float]]],
) -> tuple[Mapping[str, Any], float, tuple[str, ...]]:
    """The innermost node, all of whose bodies are known."""
    event, (own_us,) = around.pop()
    return event, max(0.0, own_us), tuple(each["name"].removesuffix(KERNEL_SUFFIX) for each, _ in around)


FOREIGN = "ForeignNode"
REFORMAT = "Reformat"
UNKNOWN = "unknown"
# (layer name, ms) in the order of one run.
LayerTimes = list[tuple[str, float]]


def layer_records(text: str) -> dict[str, dict[str, Any]]:
    """Layer name -> record in the inspector's JSON of TensorRT 10 or 11.

    Without detailed verbosity a record has only the name; a layer that contains a whole graph is called
    {ForeignNode[first...last]}.
    """
    layers = json.loads(text).get("Layers", [])
    named = [{"Name": layer} if isinstance(layer, str) else layer for layer in layers]
    return {layer["Name"]: layer for layer in named if "Name" in layer}


def layer_type(name: str, record: Mapping[str, Any]) -> str:
    """A layer's type; older releases have a more specific one as ParameterType."""
    return str(record.get("ParameterType") or record.get("LayerType") or _type_of_name(name))


def node_times(
    runs: Sequence[Sequence[tuple[str, float]]], records: Mapping[str, Mapping[str, Any]]
) -> tuple[NodeTimes, ...]:
    """Times per layer over all runs, in order of first appearance; repetitions of a layer in a run are added."""
    times: dict[str, list[float]] = {}
    for index, run in enumerate(runs):
        for name, ms in run:
            times.setdefault(name, [0.0] * len(runs))[index] += ms
    found = {name: records.get(name, {}) for name in times}
    return tuple(NodeTimes(name, layer_type(name, found[name]), tuple(ms), found[name]) for name, ms in times.items())


def _type_of_name(name: str) -> str:
    """A layer's type from its name; a reformat layer is named after the ForeignNode that it belongs to."""
    if name.startswith(f"{{{FOREIGN}"):
        return FOREIGN
    return REFORMAT if name.startswith("Reformatting CopyNode") else UNKNOWN
