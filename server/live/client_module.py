"""The page's client of live sessions as one module, for pages and programs of other people: /page/tickrt.js."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "page"
# In the order in which they need each other; only the last one's exports are those of the module.
MODULES = ("audio/wav.js", "audio/ring.js", "audio/player.js", "connection.js", "client.js")
# A module of its own, as audio threads load one: it becomes a text in the module.
WORKLET_MODULES = ("audio/ring.js", "audio/worklet.js")
WORKLET = 'new URL("worklet.js", import.meta.url)'
IMPORT = re.compile(r"^import \{[^{}]*\} from \"[^\"]+\";\n", re.MULTILINE)
EXPORT = re.compile(r"^export ", re.MULTILINE)


@cache
def client_module() -> str:
    """One ES module without imports, which exports `Live`; its types are page/tickrt.d.ts."""
    worklet = "\n".join(EXPORT.sub("", _text(name)) for name in WORKLET_MODULES)
    source = f'URL.createObjectURL(new Blob([{json.dumps(worklet)}], {{ type: "text/javascript" }}))'
    *parts, last = map(_text, MODULES)
    joined = "\n".join([*(EXPORT.sub("", part) for part in parts), last])
    assert WORKLET in joined
    return joined.replace(WORKLET, source)


def _text(name: str) -> str:
    return IMPORT.sub("", (FOLDER / name).read_text(encoding="utf-8"))
