"""ONNX Runtime sessions on graphs: the CPU reference that engines are compared with."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any, NamedTuple

import onnx

from engine_build.config import BuildConfig
from engine_build.graphs.graph_file import Graph, load_model
from engine_build.graphs.plain_graph import plain
from runtime.base.errors import BuildError
from runtime.engines.onnxruntime_cuda import CPU_PROVIDER, DATA_FOLDER_ENTRY

PREPACKING_ENTRY = "session.disable_prepacking"
UPGRADE = "or pip install --upgrade onnxruntime"


class _Refusal(NamedTuple):
    """A pattern of what ONNX Runtime says of a graph, why it is refused, and the fix; {0} is the first group."""

    pattern: re.Pattern[str]
    reason: str
    fix: str


REFUSALS = (
    _Refusal(
        re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)", re.DOTALL),
        "it is of version {0} of the file format (IR), this release reads versions up to {1}",
        f"model.ir_version = {{1}} before onnx.save, {UPGRADE}",
    ),
    _Refusal(
        re.compile(r"Opset (\d+) is under development.{0,300} is till opset (\d+)", re.DOTALL),
        "it is of opset {0}, this release has opsets up to {1}",
        f"export it for opset {{1}} or an older one: torch.onnx.export(..., opset_version={{1}}), {UPGRADE}",
    ),
    _Refusal(
        re.compile(r"Missing opset in the model", re.DOTALL),
        "it names no opset",
        'name the one it was written for: model.opset_import.append(onnx.helper.make_opsetid("", 20))',
    ),
    _Refusal(
        re.compile(
            r'In Node, \("([^"]{0,300})", (\w{1,100}), .{0,1000}No Op registered for \S+ with domain_version of (\d+)',
            re.DOTALL,
        ),
        "node {0!r}: opset {2} has no operator {1}",
        f"export it for a newer opset, {UPGRADE}",
    ),
    _Refusal(
        re.compile(r"Fatal error: (\S+):(\w+)\(-?\d+\) is not a registered function/op", re.DOTALL),
        "it has no operator {1} of the domain {0}",
        "export that node as operators of the standard ONNX domain, or {1} as a local function beside it",
    ),
    _Refusal(
        re.compile(r"Could not find an implementation for (\w+)\(\d+\) node with name '(.{0,300}?)'", re.DOTALL),
        "node {1!r} ({0}): there is no kernel for the types of its inputs",
        "export it in float32; [build] precision lowers it for a GPU",
    ),
    _Refusal(
        re.compile(r"two nodes with same node name \((.{0,300}?)\)", re.DOTALL),
        "two nodes have the name {0!r}",
        "give every node a name of its own, or none",
    ),
    _Refusal(
        re.compile(r"Cannot parse data from external tensors.{0,300} for tensor: (.*)", re.DOTALL),
        "the constant {0!r} decides a shape and lies in external data",
        "keep small constants in the graph: onnx.save(model, FILE, save_as_external_data=True, size_threshold=1024)",
    ),
)


def onnxruntime() -> Any:
    """The module. Raises BuildError where it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise BuildError("ONNX Runtime is not installed; builds need it", fix="pip install 'tickrt[cpu]'")
    import onnxruntime

    return onnxruntime


def open_onnxruntime(engine: Path, options: BuildConfig) -> Any:
    """A session over an engine of target cpu. Raises BuildError."""
    return session(engine, exact_options(options.threads), str(engine))


def graph_session(graph: Graph, options: BuildConfig) -> Any:
    """A session that runs the graph on the CPU as it is written. Raises BuildError."""
    chosen = exact_options(options.threads)
    # It runs a few times: a second copy of all weights, in the kernels' layout, is not worth it.
    chosen.add_session_config_entry(PREPACKING_ENTRY, "1")
    find_data(chosen, graph)
    return session(graph.source, chosen, graph.label)


def exact_session(graph: Graph, threads: int) -> Any:
    """A session that runs a graph as it is written, many times. Raises BuildError."""
    options = exact_options(threads)
    find_data(options, graph)
    return session(graph.source, options, graph.label)


def model_session(model: onnx.ModelProto, origin: Graph, threads: int) -> Any:
    """A session that runs a model as it is written; its external data is that of the graph it was made from.

    Raises BuildError.
    """
    options = exact_options(threads)
    options.add_session_config_entry(DATA_FOLDER_ENTRY, str(origin.folder.resolve()))
    return session(model.SerializeToString(), options, origin.label)


def find_data(options: Any, graph: Graph) -> None:
    """Let a session that is given a graph's bytes find its external data."""
    if graph.data_folder is not None:
        options.add_session_config_entry(DATA_FOLDER_ENTRY, str(graph.data_folder.resolve()))


def model_of(graph: Graph) -> onnx.ModelProto:
    """A graph as a model in the plain form, without its external data. Raises BuildError."""
    return plain(load_model(graph.source))


def exact_options(threads: int) -> Any:
    """Options that run a graph exactly as it is written."""
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return options


def session(source: Path | bytes, options: Any, label: str) -> Any:
    """A session of the CPU provider over a file or a graph's bytes. Raises BuildError."""
    name = source if isinstance(source, bytes) else str(source)
    try:
        return onnxruntime().InferenceSession(name, options, providers=[CPU_PROVIDER])
    except onnxruntime_errors() as error:
        reason, fix = _explained(str(error))
        raise BuildError(f"ONNX Runtime does not load {label}: {reason}", fix=fix) from error


def _explained(text: str) -> tuple[str, str]:
    """Why ONNX Runtime refuses a graph, and the fix."""
    for refusal in REFUSALS:
        if found := refusal.pattern.search(text):
            return refusal.reason.format(*found.groups()), refusal.fix.format(*found.groups())
    return text, "export it again; `polygraphy inspect model FILE` shows a graph"


def run_reason(error: Exception) -> str:
    """Which node fails and why, of what ONNX Runtime raises in an execute: the innermost, and those that it is in."""
    text = " ".join(str(error).split())
    parts = [part.partition(" node. Name:'") for part in text.split("while running ")[1:]]
    found = [(kind, rest.partition("' Status Message:")[0]) for kind, is_node, rest in parts if is_node]
    where = " in ".join(f"node {name!r} ({kind})" if name else f"a node {kind}" for kind, name in reversed(found))
    reason = re.sub(r"^/\S+:\d+ [^()]*\([^()]*\) ", "", text.rpartition("Status Message: ")[2])
    return f"{where}: {reason:.300}" if where else f"{reason:.300}"


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises: its own classes, which have no common base, and what its bindings make of others."""
    classes = vars(onnxruntime().capi.onnxruntime_pybind11_state).values()
    own = (each for each in classes if isinstance(each, type) and issubclass(each, Exception))
    return (*own, RuntimeError, MemoryError)
