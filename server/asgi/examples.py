"""The groups of the OpenAPI document, and its examples by operation (examples.json): parameters, bodies and answers.

`answer` is that of an operation's first status 2xx: none where there is none, or bytes. `bodies` are several, named.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_DATA: dict[str, Any] = json.loads(Path(__file__).with_name("examples.json").read_text(encoding="utf-8"))
EXAMPLES: dict[str, dict[str, Any]] = _DATA.pop("operations")


def describe(document: dict[str, Any]) -> None:
    """Add groups and links; give every operation its example, and the first sentence of its description as summary."""
    document.update(_DATA)
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        sentence = operation["description"].partition("\n\n")[0].partition(". ")[0].rstrip(".")
        operation["summary"] = sentence.replace("`", "")
        _show(operation, EXAMPLES[operation["operationId"]])


def _show(operation: dict[str, Any], example: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in example.get("parameters", ()):
            parameter["example"] = example["parameters"][parameter["name"]]
    for name, key in (("body", "example"), ("bodies", "examples")):
        if name in example:
            operation["requestBody"]["content"]["application/json"][key] = example[name]
    answers = [found for status, found in operation["responses"].items() if status.startswith("2")]
    for content in (content for answer in answers for content in answer.get("content", {}).values()):
        if "answer" in example:
            content["example"] = example["answer"]
