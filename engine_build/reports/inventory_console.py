"""What is built, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from engine_build.reports.console import aligned, size
from engine_build.reports.inventory import Entry


def print_entries(console: Console, entries: Sequence[Entry], where: str) -> None:
    """One line per engine, and a total."""
    if not entries:
        _print(console, f"nothing is built in {where}")
        return
    heads = ("engine", "target", "built for", "file", "error", "build", "runs here")
    reasons = list(dict.fromkeys(entry.why_not for entry in entries if entry.why_not))
    for line in aligned([heads, *(_row(entry, reasons) for entry in entries)]):
        _print(console, line)
    for number, reason in enumerate(reasons, 1):
        _print(console, f"({number}) {reason}")
    total = sum(entry.manifest.size_bytes for entry in entries if entry.manifest)
    fit = sum(not entry.why_not for entry in entries)
    _print(console, f"{len(entries)} engines, {size(total)} in {where}; {fit} of them run here")


def print_inspection(console: Console, about: Mapping[str, Any]) -> None:
    """An engine file with everything its manifest says."""
    _print(console, f"file      {about['file']}, {size(about['size_bytes'])}")
    if "plan_version" in about:
        _print(console, f"plan      made by TensorRT {about['plan_version']}")
    manifest = about["manifest"]
    if manifest is None:
        _print(console, "manifest  none beside it: nothing else is known without loading it")
        return
    for line in _lines(manifest):
        _print(console, line)


def _row(entry: Entry, reasons: Sequence[str]) -> tuple[str, ...]:
    fits = f"no ({reasons.index(entry.why_not) + 1})" if entry.why_not else "yes"
    if entry.manifest is None:
        return (entry.name, entry.target, "", "", "", "", fits)
    manifest = entry.manifest
    built_for = ", ".join([*manifest.device.values(), *(f"{k} {v}" for k, v in manifest.tool_versions.items())])
    figures = (size(manifest.size_bytes), f"{manifest.error.get('max_rel', 0.0):.1e}", f"{manifest.build_s:.1f} s")
    return (entry.name, entry.target, built_for, *figures, fits)


def _lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    yield f"engine    {manifest['name']}, target {manifest['target']}, content as the manifest says (SHA-256)"
    yield f"for       {_pairs({**manifest['device'], **manifest['tool_versions']})}"
    yield f"graph     SHA-256 {manifest['graph_sha256'][:12]}…"
    options = {name: value for name, value in manifest["build"].items() if name != "profiles"}
    yield f"options   {_pairs(options)}"
    for tensor in manifest["inputs"]:
        yield f"input     {_tensor(tensor)}"
    for tensor in manifest["outputs"]:
        yield f"output    {_tensor(tensor)}"
    for index, profile in enumerate(manifest["build"].get("profiles", ())):
        for name, shapes in profile.items():
            yield f"range {index}   {name}: {shapes.replace(' ', ' .. ')}"
    yield f"error     {_pairs(manifest['error'])}"
    yield f"built     in {manifest['build_s']:.1f} s on {manifest['built_on']}"
    if manifest["facts"]:
        yield f"facts     {_pairs(manifest['facts'])}"


def _tensor(tensor: Mapping[str, Any]) -> str:
    return f"{tensor['name']} {tensor['dtype']}[{', '.join(str(size) for size in tensor['shape'])}]"


def _pairs(values: Mapping[str, Any]) -> str:
    shown = {name: f"{value:.2e}" if isinstance(value, float) else value for name, value in values.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
