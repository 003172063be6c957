"""A profile as one self-contained HTML page. Its content security policy forbids loading anything."""

from __future__ import annotations

import html
import json
from dataclasses import asdict
from importlib import resources
from typing import Any

from profiling.layers.kinds import ORDER
from profiling.layers.rollups import Blocks, BlockTimes, by_block, by_kind, by_module, common_root, shown_module
from profiling.layers.timings import LayerTiming, Profile
from profiling.layers.work import EXCEEDED
from profiling.reports.tables import ceilings_text, contents_text, is_exceeded


def page(profile: Profile, depth: int) -> str:
    """page.html with a title and the profile as JSON in it. `depth`: parts of a module's path to show.

    Names come from models: the title is escaped here, the page sets all others as text.
    """
    template = (resources.files(__package__) / "page.html").read_text(encoding="utf-8")
    title = f"{profile.engine} on {profile.about.get('target', '?')}"
    # Without "<", a name that holds "</script>" or "<!--" cannot end the data.
    data = json.dumps(content(profile, depth)).replace("<", "\\u003c")
    return template.replace("@TITLE@", html.escape(title)).replace("@DATA@", data)


def content(profile: Profile, depth: int) -> dict[str, Any]:
    """The data that the page draws."""
    root = common_root(layer.module for layer in profile.layers)
    top = profile.ceilings
    return {
        "engine": profile.engine,
        "about": _about(profile),
        "runs": profile.runs,
        "wall": [profile.wall.p50_ms, profile.wall.p95_ms],
        "sum": [profile.layer_medians_ms, profile.layer_sum_p50_ms],
        "gap": [profile.gap_ms, profile.gap_name],
        "notes": profile.notes,
        "order": ORDER,
        "kinds": [asdict(row) for row in by_kind(profile)],
        "modules": [asdict(row) for row in by_module(profile, depth)],
        "blocks": [_blocks(blocks) for blocks in by_block(profile)],
        "ceilings": None if top is None else [top.flops_per_s, top.bytes_per_s, _roof_text(profile)],
        "layers": [
            _layer(layer, profile, shown_module(layer.module, root, depth, is_wide=layer.is_wide))
            for layer in profile.layers
        ],
    }


def _roof_text(profile: Profile) -> str:
    is_any_exceeded = any(is_exceeded(layer, profile) for layer in profile.layers)
    return ceilings_text(profile) + (f"; {EXCEEDED}" if is_any_exceeded else "")


def _about(profile: Profile) -> list[tuple[str, str]]:
    """Name and text of every property of the measurement that is known."""
    about = profile.about
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in about.get("shapes", {}).items())
    texts = {
        "target": about.get("target"),
        "precision": about.get("precision"),
        "machine": " ".join(about.get("machine", {}).values()),
        "versions": ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items()),
        "engine": str(about.get("engine_sha256", ""))[:12],
        "commit": about.get("commit"),
        "shapes": shapes,
    }
    return [(name, str(value)) for name, value in texts.items() if value]


def _blocks(blocks: Blocks) -> dict[str, Any]:
    return {
        "prefix": blocks.prefix,
        "indices": blocks.indices,
        "parts": [_part(name, part) for name, part in (*blocks.parts.items(), ("sum", blocks.whole))],
        "verdict": blocks.verdict,
    }


def _part(name: str, part: BlockTimes) -> dict[str, Any]:
    return {"name": name, "ms": part.median_ms}


def _layer(layer: LayerTiming, profile: Profile, group: str) -> dict[str, Any]:
    roof = layer.roof(profile.ceilings)
    return {
        "name": layer.name,
        "op": layer.op_type,
        "kind": layer.kind,
        "module": layer.module,
        "group": group,
        "holds": contents_text(layer),
        "ms": layer.median_ms,
        "mean": layer.average_ms,
        "share": layer.share,
        "flops": layer.work.flops if layer.work else None,
        "bytes": layer.work.bytes if layer.work else None,
        "gflops": roof.flops_per_s / 1e9 if roof else None,
        "gbs": roof.bytes_per_s / 1e9 if roof else None,
        "bound": roof.bound if roof else None,
        "roof": roof.reached if roof else None,
    }
