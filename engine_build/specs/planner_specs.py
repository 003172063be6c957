"""The planner's engines: the decoder with its three shape ranges, a smaller one for drafts, the sampler.

Shape letters: R rows, U new tokens per row, G logits per row, E cache slots that attention reads, H key and value
heads, M capacity of a cache, J width of a head, V vocabulary, Z sequences, A the position of the first new token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine_build.graphs.graph_file import graph_of, read_graph
from engine_build.graphs.planner_graph import sampler_graph
from engine_build.specs.engine_spec import IN_PLACE, EngineSpec, Port, Range, Sizes, check_free, check_ports
from runtime.base.errors import BuildError
from runtime.config.bundle import Bundle
from runtime.config.planner import LanguageGraphSpec, LanguageInputs, PlannerSpec
from runtime.engines.loading import tool_versions
from runtime.tick.language.step_buffers import SAMPLER_INPUTS, SAMPLER_OUTPUTS, SamplerTensor

# The first release of ONNX Runtime with opset 24.
ONNXRUNTIME = (1, 25)
# A prompt's chunk is of one sequence: its rows with and without guidance.
PREFILL_ROWS = 2
SAMPLE_ROWS = 2


def planner_specs(bundle: Bundle, planner: PlannerSpec, sequences: int) -> Iterator[EngineSpec]:
    """The planner, its draft, the sampler. Raises ConfigError, BuildError where ONNX Runtime is too old."""
    _check_onnxruntime()
    yield _decoder_spec("planner", "planner", bundle, planner, planner, 2 * sequences)
    if planner.draft is not None:
        yield _decoder_spec("planner_draft", "planner.draft", bundle, planner, planner.draft, 2 * sequences)
    yield _sampler_spec(planner, sequences)


def planner_ranges(planner: PlannerSpec, capacity: int, rows: int) -> tuple[dict[str, Range], ...]:
    """Prefill, decode, verify: tokens per row, and logits of one of them or of all.

    Decodes that feed forced tokens along are of the last range.
    """
    prefill, verify = planner.prefill_tokens, planner.verify_tokens
    slots = (1, -(-capacity // 2), capacity)
    return (
        _sizes((1, 1, PREFILL_ROWS), (prefill,) * 3, (1,) * 3, slots),
        _sizes((1, rows, rows), (1,) * 3, (1,) * 3, slots),
        _sizes((1, rows, rows), (2, verify, verify), (1, verify, verify), slots),
    )


def _sizes(rows: Range, tokens: Range, logits: Range, slots: Range) -> dict[str, Range]:
    """Slots hold the new tokens, whose positions are the last."""
    slots = tuple(max(size, most) for size, most in zip(slots, tokens, strict=True))  # type: ignore[assignment]
    first = tuple(slot - token for slot, token in zip(slots, tokens, strict=True))
    return {"R": rows, "U": tokens, "G": logits, "E": slots, "A": first}  # type: ignore[dict-item]


def _decoder_spec(
    name: str, table: str, bundle: Bundle, planner: PlannerSpec, spec: LanguageGraphSpec, rows: int
) -> EngineSpec:
    graph = read_graph(bundle.graph_path(spec.graph))
    inputs, outputs = _inputs(table, spec.inputs), _outputs(table, spec)
    sizes = check_ports(graph, inputs, outputs, {"M": spec.capacity, "V": planner.vocabulary, "1": 1})
    ranges = planner_ranges(planner, spec.capacity, rows)
    largest = {letter: max(found[letter][2] for found in ranges) for letter in ranges[0]}
    check_free(graph, (*inputs, *outputs), {letter: (1, max(2, largest[letter])) for letter in "RUGE"})
    # Of a large graph only the first ones are compared. All caches of many rows would not fit into a host's memory.
    samples = [_at(found, end) for end in (2, 0) for found in (*ranges[1:], ranges[0])]
    return EngineSpec(
        name=name,
        graph=graph,
        inputs=inputs,
        outputs=outputs,
        samples=tuple({**sizes, **sample, "R": min(sample["R"], SAMPLE_ROWS)} for sample in samples),
        largest={**sizes, **largest},
        ranges=ranges,
    )


def _inputs(table: str, names: LanguageInputs) -> tuple[Port, ...]:
    def port(role: str, letters: str, values: str, limit: str = "") -> Port:
        return Port(f"{table}.inputs.{role}", getattr(names, role), letters, "int64", values, limit)

    return (
        port("tokens", "RU", "count", "V"),
        port("position", "R", "size", "A"),
        port("write", "R", "size", "A"),
        port("window", "R", "size", "M"),
        port("slots", "E", "ramp"),
        port("pick", "RG1", "count", "U"),
        *(Port(f"{table}.inputs.past.{index}", past, "RHMJ") for index, past in enumerate(names.past)),
    )


def _outputs(table: str, spec: LanguageGraphSpec) -> tuple[Port, ...]:
    caches = enumerate(spec.outputs.present)
    return (
        Port(f"{table}.outputs.logits", spec.outputs.logits, "RGV"),
        *(Port(f"{table}.outputs.present.{index}", present, "RHMJ", values=IN_PLACE) for index, present in caches),
    )


def _sampler_spec(planner: PlannerSpec, sequences: int) -> EngineSpec:
    known, verify = {"V": planner.vocabulary}, planner.verify_tokens
    ranges = ({"Z": (1, sequences, sequences), "R": (1, 2 * sequences, 2 * sequences), "G": (1, 1, verify)},)
    return EngineSpec(
        name="sampler",
        graph=graph_of(sampler_graph(planner.vocabulary, planner.sampler.candidates)),
        inputs=tuple(_sampler_port(name, tensor) for name, tensor in SAMPLER_INPUTS.items()),
        outputs=tuple(_sampler_port(name, tensor) for name, tensor in SAMPLER_OUTPUTS.items()),
        samples=tuple({**known, **_at(ranges[0], end)} for end in (0, 2)),
        largest={**known, **_at(ranges[0], 2)},
        ranges=ranges,
    )


def _sampler_port(name: str, tensor: SamplerTensor) -> Port:
    limit = {"positive_row": "R", "negative_row": "R", "row_sequence": "Z", "top_k": "V"}.get(name, "")
    values = "count" if limit else "flag" if tensor.dtype == "bool" else "normal" if name == "logits" else "unit"
    return Port(name, name, tensor.letters.replace("N", "Z"), tensor.dtype, values, limit)


def _at(ranges: Mapping[str, Range], end: int) -> Sizes:
    return {letter: limits[end] for letter, limits in ranges.items()}


def _check_onnxruntime() -> None:
    for package, version in tool_versions("cpu").items():
        if tuple(int(part) for part in version.split(".")[:2]) < ONNXRUNTIME:
            needed = ".".join(map(str, ONNXRUNTIME))
            raise BuildError(
                f"{package} {version} does not run a planner, whose graph is of opset 24; expected {needed} or later",
                fix=f"pip install '{package}>={needed}'",
            )
