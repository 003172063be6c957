"""The page's client as one module: it needs nothing else, and its types are beside it."""

from __future__ import annotations

import re

from helpers.http_harness import Served

from server.live.client_module import FOLDER, MODULES, client_module


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


def test_it_imports_nothing_and_exports_the_client() -> None:
    text = without_comments(client_module())
    assert "import " not in text
    assert "import(" not in text
    assert "import.meta" not in text
    assert re.findall(r"^export \w+ (\w+)", text, re.MULTILINE) == ["Live"]


def test_it_has_all_that_its_modules_import() -> None:
    for name in MODULES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        for imported in re.findall(r'^import .* from "(.+)";$', text, re.MULTILINE):
            found = ((FOLDER / name).parent / imported).resolve().relative_to(FOLDER).as_posix()
            assert MODULES.index(found) < MODULES.index(name)


def test_it_is_served_with_its_types(served: Served) -> None:
    with served.client() as client:
        module, types = client.get("/page/tickrt.js"), client.get("/page/tickrt.d.ts")
    assert module.text == client_module()
    assert module.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "export class Live" in types.text
