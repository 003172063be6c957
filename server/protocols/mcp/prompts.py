"""Prompts that show what can be asked: each a text with the arguments that a person fills in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.asgi.problems import Finding, first_findings, invalid_request

# Of tools and prompts, as assistants and people read them.
TEXTS: dict[str, Any] = json.loads(Path(__file__).with_name("texts.json").read_text(encoding="utf-8"))
MAX_ARGUMENT = 2000


@dataclass(frozen=True)
class PromptEntry:
    """One prompt. arguments: name -> what it is; `optional` have a default. text: with the arguments in braces."""

    title: str
    description: str
    arguments: Mapping[str, str]
    text: str
    optional: Mapping[str, str]

    def filled(self, given: Mapping[str, str]) -> str:
        """The text with arguments. Raises ProblemError 422."""
        findings = (Finding(pointer=f"/arguments/{name}", detail=why) for name, why in self._refused(given))
        if found := first_findings(findings):
            raise invalid_request(found, f"it takes {', '.join(self.arguments)}")
        return self.text.format_map({**self.optional, **given})

    def _refused(self, given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Names of arguments, and why they are refused."""
        yield from ((name, "is not known") for name in given if name not in self.arguments)
        values = {**self.optional, **given}
        yield from ((name, "is missing") for name in self.arguments if name not in values)
        yield from (
            (name, f"has more than {MAX_ARGUMENT} characters") for name in given if len(given[name]) > MAX_ARGUMENT
        )


PROMPTS = {name: PromptEntry(**prompt) for name, prompt in TEXTS["prompts"].items()}
