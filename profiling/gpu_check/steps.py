"""The steps, in ten minutes together, and the deployments that they build and measure, made of what was prepared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiling.gpu_check.running import ROOT, CheckStep
from runtime.config.deployment import Deployment, ShapeRanges, Target, load_deployment
from runtime.devices.cuda_calls import Gpu

BUILD, BENCH, PROFILE, CARD, RTX = (
    "engine_build.cli",
    "profiling.bench_cli",
    "profiling.profile_cli",
    "profiling.gpu_check.card",
    "profiling.gpu_check.rtx",
)
TINY = "tiny"
# The bundles that are prepared. The first one is shipped.
BUNDLES = (TINY, "two-layers", "full", "codec", "planner")
ROWS, SECOND_ROWS = (1, 4, 8), (9, 16, 16)
DEPTHS = "1,4,8"
FP8_CAPABILITY = (8, 9)
FEW: Mapping[str, Any] = {"step_variants": ["plain", "guidance"]}
PREPARE = "python -m profiling.gpu_check prepare"


@dataclass(frozen=True)
class CheckedDeployment:
    """A deployment of a check: its bundle, its [build] and [runtime], and whether it has a second range of rows.

    engines: the deployment whose engines it uses, where these are not its own.
    """

    bundle: str
    build: Mapping[str, Any] = field(default_factory=dict)
    runtime: Mapping[str, Any] = field(default_factory=dict)
    target: Target = "tensorrt"
    has_second_range: bool = False
    engines: str = ""


def _codec(precision: str, level: int) -> CheckedDeployment:
    """A codec beside a decoder of nearly nothing, which is built for it."""
    precisions = {"decoder": "fp32", "codec": precision, "encoders": "fp32"}
    return CheckedDeployment("codec", {"precision": precisions, "optimization_level": {"decoder": 0, "codec": level}})


def _without_codec(precision: str) -> Mapping[str, Any]:
    """The precision of what is measured; the codec, which is not, is built as soon as can be."""
    precisions = {"decoder": precision, "codec": "fp32", "encoders": "fp32", "planner": "bf16"}
    return {"precision": precisions, "optimization_level": {"codec": 0, "encoders": 0}}


# With the variants of the step that its defaults need.
FULL = {"precision": "bf16", "verbosity": "detailed", "step_variants": ["plain", "dcw"]}
DEPLOYMENTS: Mapping[str, CheckedDeployment] = {
    "tiny": CheckedDeployment(TINY, {"precision": "fp32", "optimization_level": 0}),
    "codec-fp16-level-1": _codec("fp16", 1),
    "codec-fp16": _codec("fp16", 3),
    "codec-tf32": _codec("tf32", 3),
    "codec-fp32": _codec("fp32", 3),
    "full": CheckedDeployment("full", FULL),
    "full-plain": CheckedDeployment("full", FULL, {"capture": False}, engines="full"),
    "rtx": CheckedDeployment(TINY, {"precision": "fp16"}, target="tensorrt-rtx"),
    "second": CheckedDeployment("two-layers", _without_codec("bf16"), has_second_range=True),
    "hybrid": CheckedDeployment("full", _without_codec("fp16")),
    "fp8": CheckedDeployment("two-layers", _without_codec("fp8")),
    "planner": CheckedDeployment("planner", _without_codec("bf16")),
}


def is_rtx_card(gpu: Gpu | None) -> bool:
    """Whether engines of tensorrt-rtx run on it: from Ampere on, but for cards of data centres."""
    return gpu is not None and ((8, 0) <= _capability(gpu) < (9, 0) or _capability(gpu) >= (12, 0))


def _capability(gpu: Gpu) -> tuple[int, ...]:
    return tuple(map(int, gpu.compute_capability.split(".")))


def check_steps(folder: Path, source: Path, gpu: Gpu | None) -> list[CheckStep]:
    """All steps, as a table of minutes has them, with their results in `folder`; source: what was prepared."""
    is_rtx, has_fp8 = is_rtx_card(gpu), gpu is None or _capability(gpu) >= FP8_CAPABILITY
    maker = _Maker(folder, source)
    steps = [
        maker.step("card", 10, CARD, "facts", kind="card"),
        *maker.built("tiny", 30),
        maker.step("tiny-captured", 10, CARD, "captured", of="tiny", kind="captured"),
    ]
    for name in (name for name in DEPLOYMENTS if name.startswith("codec-")):
        steps += maker.built(name, 12)
        steps.append(maker.step(f"{name}-time", 6, PROFILE, of=name, more=("--engine", "codec"), kind="profile"))
    ticks = (f"depth={DEPTHS}", "--ticks", "32")
    live = ("4", "--background", "2", "--minutes", "0.3")
    html = ("--rows", str(ROWS[-1]), "--html", str(folder / "full-kernels.html"))
    steps += [
        *maker.built("full", 130),
        maker.step("full-kernels", 12, PROFILE, of="full", more=html, kind="profile"),
        maker.step("full-ticks", 20, BENCH, "sweep", of="full", more=ticks, kind="bench"),
        maker.step("full-plain-ticks", 15, BENCH, "sweep", of="full-plain", more=ticks, kind="bench"),
        maker.step("full-captured", 15, CARD, "captured", of="full", kind="captured"),
        maker.step("full-decodes", 20, CARD, "decodes", of="full", kind="decodes"),
        maker.step("full-live", 45, BENCH, "live", of="full", more=live, kind="live"),
    ]
    for name, build_s, bench_s in (
        ("rtx", 15, 10) if is_rtx else ("second", 40, 15),
        ("hybrid", 75, 10),
        *([("fp8", 25, 8)] if has_fp8 else []),
    ):
        depth = ("--depth", str(SECOND_ROWS[-1] if name == "second" else ROWS[-1]), "--ticks", "16")
        steps += maker.built(name, build_s)
        if name == "rtx":
            own = (("kernels", 8), ("close", 15), ("reload", 12))
            steps += [maker.step(f"rtx-{word}", limit_s, RTX, word, of=name, kind="rtx") for word, limit_s in own]
        steps.append(maker.step(f"{name}-ticks", bench_s, BENCH, of=name, more=depth, kind="bench"))
    steps += maker.built("planner", 30)
    steps.append(maker.step("planner-ticks", 12, BENCH, "planner", of="planner", kind="planner"))
    return steps


@dataclass(frozen=True)
class _Maker:
    folder: Path
    source: Path

    def built(self, name: str, limit_s: float) -> Iterator[CheckStep]:
        """The step NAME-build. Its result are the engines' manifests."""
        plan, missing = DEPLOYMENTS[name], self._missing(name)
        engines = self.folder / "engines" / name / plan.target
        words = (BUILD, str(self._path(name)), "--target", plan.target)
        yield CheckStep(f"{name}-build", words, limit_s, (), "engines", engines, missing)

    def step(
        self, name: str, limit_s: float, *words: str, kind: str, of: str = "", more: Sequence[str] = ()
    ) -> CheckStep:
        """A step that writes NAME.json. of: the deployment that it measures."""
        result = self.folder / f"{name}.json"
        config = (str(self._path(of)), "--target", DEPLOYMENTS[of].target) if of else ()
        needs = (f"{DEPLOYMENTS[of].engines or of}-build",) if of else ()
        missing = self._missing(of) if of else ""
        return CheckStep(name, (*words, *config, *more, "--json", str(result)), limit_s, needs, kind, result, missing)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.toml"

    def _missing(self, name: str) -> str:
        bundle = DEPLOYMENTS[name].bundle
        return "" if source_of(self.source, bundle).is_file() else f"{bundle} is not prepared: {PREPARE}"


def source_of(source: Path, bundle: str) -> Path:
    """The deployment file of a prepared bundle; of the shipped one where none of that name was prepared."""
    path = source / f"{bundle}.toml"
    return ROOT / "configs" / "demo.toml" if bundle == TINY and not path.is_file() else path


def write_deployments(folder: Path, source: Path, only: Collection[str] = DEPLOYMENTS) -> None:
    """Write the deployments of the bundles that are prepared into `folder`, with engines that were built before.

    Raises ConfigError, OSError.
    """
    for name in only:
        plan = DEPLOYMENTS[name]
        path = source_of(source, plan.bundle)
        if path.is_file():
            engines = folder / "engines" / (plan.engines or name)
            text = _deployment_text(load_deployment(path), plan, engines)
            (folder / f"{name}.toml").write_text(text, encoding="utf-8")
            if (built := source / "engines" / name).is_dir() and not engines.exists():
                shutil.copytree(built, engines)


def _deployment_text(given: Deployment, plan: CheckedDeployment, engines: Path) -> str:
    """A deployment with one range, of whole canvases, or with a second one of more rows."""
    canvas = given.loaded_bundle.latents.canvas_frames
    held = next(shape for shape in given.shapes if shape.frames.holds(canvas))
    ranges = [_range(held, canvas, rows) for rows in (ROWS, SECOND_ROWS)[: 1 + plan.has_second_range]]
    head = {"bundle": str(given.bundle), "engines": str(engines), "target": plan.target}
    tables = {
        "deployment": head,
        "runtime": {"depth": ranges[-1]["rows"]["max"], "queue": 32, **plan.runtime},
        "build": {**FEW, **plan.build},
    }
    shapes = [f"[[shapes]]\n{_lines(each)}" for each in ranges]
    return "\n".join([*(f"[{name}]\n{_lines(table)}" for name, table in tables.items()), *shapes])


def _range(held: ShapeRanges, canvas: int, rows: tuple[int, int, int]) -> dict[str, dict[str, int]]:
    names = ("min", "opt", "max")
    return {
        "rows": dict(zip(names, rows, strict=True)),
        "frames": dict.fromkeys(names, canvas),
        "tokens": {name: getattr(held.tokens, name) for name in names},
    }


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {_value(value)}\n" for name, value in table.items())


def _value(value: Any) -> str:
    """As TOML, whose lists, numbers and plain strings are JSON's."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_value(each)}" for name, each in value.items()) + " }"
    return json.dumps(value)
