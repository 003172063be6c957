"""Which package may import which, and where heavy libraries are imported."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest
from helpers.imports import PACKAGES, Import, imports_of, module_graph, module_name, modules_in
from helpers.paths import ROOT

# Package -> what it may import, besides itself. Inside runtime the arrows point one way; deferred imports count too.
BASE = {"runtime.base"}
CONFIG = BASE | {"runtime.config"}
DEVICES = CONFIG | {"runtime.devices"}
ENGINES = DEVICES | {"runtime.engines"}
AUDIO = ENGINES | {"runtime.audio"}
REQUESTS = CONFIG | {"runtime.requests"}
MUSIC = REQUESTS | {"runtime.music"}
SCHEDULING = REQUESTS | {"runtime.tick.scheduling"}
RUNNER = SCHEDULING | ENGINES | {"runtime.tick.runner", "runtime.tick.clock"}
DENOISE = RUNNER | {"runtime.tick.denoise"}
LANGUAGE = RUNNER | {"runtime.tick.language"}
TICK = DENOISE | LANGUAGE | {"runtime.tick"}
PIPELINE = TICK | AUDIO | MUSIC | {"runtime.pipeline"}
PROTOCOL = AUDIO | MUSIC | {"runtime.live.protocol"}
PLAYBACK = PROTOCOL | {"runtime.live.playback"}
STORAGE = PROTOCOL | {"runtime.live.storage"}
PARTS = PLAYBACK | STORAGE | {"runtime.live.parts"}
SESSION = PARTS | {"runtime.live.session"}
LIVE = PIPELINE | {"runtime.live"}
ASGI = {"runtime", "server.config"}
SERVICE = ASGI | {"server.asgi", "server.service"}
MAY_IMPORT = {
    "runtime": set[str](),
    "runtime.base": set[str](),
    "runtime.config": CONFIG,
    "runtime.devices": DEVICES,
    "runtime.engines": ENGINES,
    "runtime.audio": AUDIO,
    "runtime.requests": REQUESTS,
    "runtime.music": MUSIC,
    "runtime.tick.scheduling": SCHEDULING,
    "runtime.tick.runner": RUNNER,
    "runtime.tick.clock": DEVICES,
    "runtime.tick.denoise": DENOISE,
    "runtime.tick.language": LANGUAGE,
    "runtime.tick": TICK,
    "runtime.pipeline": PIPELINE,
    "runtime.live.protocol": PROTOCOL,
    "runtime.live.playback": PLAYBACK,
    "runtime.live.storage": STORAGE,
    "runtime.live.parts": PARTS,
    "runtime.live.session": SESSION,
    "runtime.live": LIVE,
    "runtime.commands": PIPELINE,
    "tickrt": LIVE | {"runtime.commands"},
    "engine_build": {"runtime"},
    "configs": {"runtime", "engine_build"},
    "configs.docs": {"runtime", "engine_build", "server", "profiling", "tickrt"},
    "server.config": {"runtime"},
    "server.asgi": ASGI,
    "server.service": SERVICE,
    "server.process": SERVICE,
    "server.routes": SERVICE,
    "server.live": SERVICE,
    "server.protocols": SERVICE | {"server.live", "server.routes", "tickrt"},
    "server.app": SERVICE | {"server.live", "server.routes", "server.protocols"},
    "server.cluster": {"runtime", "server"},
    "server": {"runtime", "server"},
    "profiling": {"runtime", "tickrt", "server.cluster"},
}

# Heavy packages and the only modules (or folders, with a slash) that import them.
HEAVY = {
    "onnxruntime": {
        "runtime/engines/onnxruntime.py",
        "engine_build/graphs/reference_session.py",
        "profiling/bench/peers/plain_generation.py",
        "configs/demo/recipe/",
    },
    "tensorrt": {"runtime/engines/tensorrt/binding.py"},
    "tensorrt_rtx": {"runtime/engines/tensorrt/rtx/", "engine_build/compile/tensorrt_compiler.py"},  # types
    "cuda": {"runtime/devices/cuda_calls.py"},
    "nvtx": {"runtime/tick/clock.py"},
    "torch": {
        "server/clients/comfyui_tickrt.py",  # runs in ComfyUI
        "engine_build/export/checkpoint.py",
        "engine_build/export/codec_graphs.py",
        "engine_build/export/decoder_graph.py",
        "engine_build/export/stored_tensors.py",
        "engine_build/export/torch_export.py",
        "profiling/bench/peers/",
        "engine_build/export/acestep/",
        "engine_build/export/stable_audio_3/",
        "configs/demo/recipe/",
    },
    "diffusers": {
        "engine_build/export/acestep/",
        "engine_build/export/stable_audio_3/",
        "configs/demo/recipe/",
        "profiling/bench/peers/",
    },
    "transformers": {
        "engine_build/export/checkpoint.py",
        "engine_build/export/acestep/",
        "engine_build/export/stable_audio_3/",
        "profiling/bench/peers/",
    },
    "huggingface_hub": {"engine_build/export/hub.py"},
    "openvino": {
        "runtime/engines/openvino.py",
        "engine_build/compile/openvino_compiler.py",
        "profiling/bench/peers/openvino_decoder.py",
    },
    "matplotlib": {"profiling/output.py", "configs/demo/recipe/"},
    "mido": {"runtime/music/midi_file.py", "configs/demo/recipe/"},
    "tokenizers": {
        "runtime/pipeline/text_encoder.py",
        "engine_build/export/checkpoint.py",
        "configs/demo/recipe/",
        "profiling/bench/peers/example.py",
    },
    "av": {"runtime/audio/decoding.py", "runtime/audio/encoding.py"},
    "sounddevice": {"runtime/audio/playback.py"},
    "soundfile": set(),
    "polygraphy": {"engine_build/compile/verify.py"},
    "redis": {"runtime/live/storage/redis_store.py"},
    "ray": {"server/cluster/ray_serve.py"},
    "psutil": {"server/cluster/local_cluster.py", "profiling/full_size.py"},
    "pythonosc": {"server/protocols/osc/packets.py"},
    "mcp": {"server/protocols/mcp/protocol.py", "server/protocols/mcp/endpoint.py"},
    "fastapi": {"server/"},
    "uvicorn": {"server/"},
}
SERVE_TIME = ("server.cli", "runtime.commands.generate", "engine_build.cli", "profiling.bench_cli")


def package_of(name: str) -> str:
    """The longest entry of MAY_IMPORT that a dotted name lies in; "" for what is not ours."""
    fitting = [package for package in MAY_IMPORT if name == package or name.startswith(f"{package}.")]
    return max(fitting, key=len, default="")


def wrong_arrows(imports: list[Import]) -> list[str]:
    """Imports between packages that are not allowed."""
    found = []
    for item in imports:
        source = package_of(module_name(item.file))
        target = package_of(item.name)
        is_allowed = any(
            target == allowed or target.startswith(f"{allowed}.") for allowed in {source, *MAY_IMPORT[source]}
        )
        if target and not is_allowed:
            found.append(f"{item.file}:{item.line}: {source} imports {item.name}")
    return found


def wrong_places(imports: list[Import]) -> list[str]:
    """Heavy imports outside of their module."""
    return [
        f"{item.file}:{item.line}: {item.name} belongs into {', '.join(sorted(places))}"
        for item in imports
        if (places := HEAVY.get(item.name.split(".")[0])) is not None
        and not any(item.file == place or (place.endswith("/") and item.file.startswith(place)) for place in places)
    ]


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """One import cycle, empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@cache
def source_modules() -> dict[str, str]:
    """Dotted name -> file, for every module of the four packages."""
    return modules_in(ROOT)


@cache
def source_imports() -> list[Import]:
    """Every import of the four packages."""
    return [
        item
        for file in source_modules().values()
        for item in imports_of(ast.parse((ROOT / file).read_text(encoding="utf-8")), file)
    ]


def parsed(file: str, source: str) -> list[Import]:
    return list(imports_of(ast.parse(source), file))


def test_every_package_has_modules() -> None:
    assert {name.split(".")[0] for name in source_modules()} == {*PACKAGES, "tickrt"}
    assert len(source_imports()) > 100


def test_packages_import_only_what_lies_below_them() -> None:
    assert wrong_arrows(source_imports()) == []


def test_heavy_packages_are_imported_in_their_own_modules() -> None:
    assert wrong_places(source_imports()) == []


@pytest.mark.parametrize("package", [file for file in source_modules().values() if file.endswith("__init__.py")])
def test_every_package_says_its_purpose(package: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / package).read_text(encoding="utf-8"))) or ""
    assert text.endswith(".")


def test_every_test_file_is_collected(pytestconfig: pytest.Config) -> None:
    """pytest passes over folders that it takes for build outputs, without a word."""
    left_out = pytestconfig.getini("norecursedirs")
    folders = {folder for file in (ROOT / "tests").rglob("test_*.py") for folder in file.relative_to(ROOT).parts[:-1]}
    assert [folder for folder in folders if any(fnmatch(folder, pattern) for pattern in left_out)] == []


def test_no_import_cycle() -> None:
    assert cycle(module_graph(source_imports(), source_modules())) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("runtime/tick/loop/tick_loop.py", "from server.app import build"),
        ("runtime/tick/loop/tick_loop.py", "def f():\n    import profiling.bench_cli"),
        ("server/app.py", "from engine_build import builder"),
        ("engine_build/reports/end_to_end.py", "from configs.demo.recipe import words"),
        ("server/app.py", "from profiling import bench"),
        ("server/service/service.py", "from server.protocols.osc.server import OscServer"),
        ("server/asgi/middleware.py", "from server.service.service import Service"),
        ("profiling/bench_cli.py", "import server"),
        ("runtime/tick/denoise/bucket.py", "from runtime.tick.loop.tick_loop import TickLoop"),
        ("runtime/tick/scheduling/scheduler.py", "from runtime.tick.denoise import runner"),
        ("runtime/tick/scheduling/scheduler.py", "from runtime.devices.device import Device"),
        ("runtime/requests/validation.py", "def f():\n    from runtime.engines.engine import Engine"),
        ("runtime/audio/codec.py", "import runtime.pipeline.pipeline"),
        ("runtime/devices/device.py", "if TYPE_CHECKING:\n    import runtime.engines.engine"),
        ("runtime/config/bundle.py", "from runtime.commands.generate import main"),
        ("runtime/pipeline/pipeline.py", "import tickrt"),
        ("runtime/pipeline/pipeline.py", "from runtime.live.hosting.host import SessionHost"),
        ("runtime/live/hosting/host.py", "from server.service.service import Service"),
        ("runtime/live/parts/controls.py", "from runtime.live.session.live_session import LiveSession"),
        ("runtime/live/protocol/actions.py", "from runtime.pipeline.pipeline import Pipeline"),
        ("runtime/api/tickrt/model.py", "from engine_build.compile.builder import build"),
    ],
)
def test_a_wrong_arrow_is_found(file: str, source: str) -> None:
    assert len(wrong_arrows(parsed(file, source))) == 1


def test_a_heavy_import_in_a_function_is_found() -> None:
    assert wrong_places(parsed("runtime/audio/codec.py", "def f():\n    import torch.nn"))
    assert not wrong_places(parsed("configs/demo/recipe/model.py", "import torch"))


def test_a_cycle_is_found() -> None:
    modules = {"runtime.a": "runtime/a.py", "runtime.b": "runtime/b.py"}
    there = parsed("runtime/a.py", "from runtime.b import thing")
    assert cycle(module_graph(there + parsed("runtime/b.py", "import runtime.a"), modules))
    assert cycle(module_graph(there + parsed("runtime/b.py", "def f():\n    import runtime.a"), modules))
    assert not cycle(module_graph(there, modules))


def test_nothing_at_serve_time_imports_torch() -> None:
    program = "import sys; sys.modules.update(torch=None, diffusers=None, onnxscript=None)\n" + "\n".join(
        f"import {module}" for module in SERVE_TIME
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_the_runtime_opens_without_any_engine_library() -> None:
    blocked = ", ".join(f"{name}=None" for name in ("onnxruntime", "tensorrt", "cuda", "torch", "nvtx"))
    program = f"import sys; sys.modules.update({blocked})\nimport runtime.tick.loop.tick_loop, runtime.devices.device"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
