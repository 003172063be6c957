"""The lines that server/protocols/README.md shows for a client."""

from __future__ import annotations

import re

from helpers.paths import ROOT


def shown(section: str, language: str) -> list[str]:
    """The code blocks in `language` of one section."""
    text = (ROOT / "server/protocols/README.md").read_text(encoding="utf-8")
    found = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", found, re.MULTILINE | re.DOTALL)
