"""The page's files: types, tags, and headers that keep it to its own server."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable

import pytest
from helpers.http_harness import PROBLEM, Served

from server.live.page_routes import FOLDER, MODULES, client_module, static_files


@pytest.mark.parametrize(
    ("path", "needed"),
    [("/", {"page/main.js", "page/style.css"}), ("/docs", {"page/docs.js", "page/swagger/swagger-ui-bundle.js"})],
)
def test_a_page_names_only_files_that_are_served(served: Served, path: str, needed: set[str]) -> None:
    with served.client() as client:
        names = re.findall(r'(?:src|href)="([^"]+)"', client.get(path).text)
        assert needed <= set(names)
        for name in names:
            assert client.get(f"/{name}").status_code == 200


def test_modules_import_only_modules_of_the_page() -> None:
    for path in FOLDER.rglob("*.js"):
        for name in re.findall(r'(?:from|import\()\s*"([^"]+)"', path.read_text(encoding="utf-8")):
            assert name.startswith("."), f"{path.name} imports {name}"
            found = (path.parent / name).resolve().relative_to(FOLDER).as_posix()
            assert found in static_files(), f"{path.name} imports {name}"


def test_nothing_is_fetched_from_elsewhere() -> None:
    for path in FOLDER.rglob("*.*"):
        addresses = re.findall(r"https?://[\w./-]+", path.read_text(encoding="utf-8"))
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, path.name


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/page/main.js", "text/javascript; charset=utf-8"),
        ("/page/audio/worklet.js", "text/javascript; charset=utf-8"),
        ("/page/style.css", "text/css; charset=utf-8"),
        ("/page/icon.svg", "image/svg+xml"),
        ("/docs", "text/html; charset=utf-8"),
        ("/page/swagger/swagger-ui.css", "text/css; charset=utf-8"),
    ],
)
def test_types_and_security_headers(served: Served, path: str, media_type: str) -> None:
    with served.client() as client:
        response = client.get(path)
    assert response.headers["content-type"] == media_type
    assert response.headers["x-content-type-options"] == "nosniff"
    policy = dict(part.strip().partition(" ")[::2] for part in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"
    # Swagger UI has styles in its elements.
    assert "unsafe-inline" not in str({**policy, "style-src": ""} if path == "/docs" else policy)


def test_the_page_may_connect_to_the_edges_that_the_settings_name(serve: Callable[..., Served]) -> None:
    with serve(edges=("https://two.example", "http://three.example:8000", "https://http.example")).client() as client:
        policy = client.get("/").headers["content-security-policy"]
    assert policy.endswith("; connect-src 'self' wss://two.example ws://three.example:8000 wss://http.example")


def test_an_unchanged_file_is_not_sent_again(served: Served) -> None:
    with served.client() as client:
        first = client.get("/page/main.js")
        again = client.get("/page/main.js", headers={"If-None-Match": first.headers["etag"]})
        anything = client.get("/page/main.js", headers={"If-None-Match": "*"})
        changed = client.get("/page/main.js", headers={"If-None-Match": '"another"'})
    assert (again.status_code, again.content) == (anything.status_code, anything.content) == (304, b"")
    assert changed.content == first.content


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [("gzip, br", "gzip"), ("br;q=1.0, gzip;q=0.8", "gzip"), ("gzip;q=0", None), ("identity", None), ("br", None)],
)
def test_files_are_packed_for_those_who_take_it(served: Served, accepted: str, coding: str | None) -> None:
    with served.client() as client, client.stream("GET", "/page/main.js", headers={"Accept-Encoding": accepted}) as got:
        raw = b"".join(got.iter_raw())
    plain = (FOLDER / "main.js").read_bytes()
    assert got.headers.get("content-encoding") == coding
    assert (gzip.decompress(raw) if coding else raw) == plain
    assert got.headers["vary"] == "Accept-Encoding"


def named_by(name: str) -> set[str]:
    """What a file of the page names that is fetched with it: not what a module loads when it is first used."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    if name.endswith(".html"):
        return {address.removeprefix("page/") for address in re.findall(r'(?:src|href)="([^"]+)"', text)}
    if name.endswith(".css"):
        found = re.findall(r'url\("([^"]+)"\)', text)
    else:
        code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        # The player's worklet is a module of its own.
        found = re.findall(r'(?:from|import) "([^"]+)"|new URL\("([^"]+\.js)", import\.meta\.url\)', code)
        found = [address or worklet for address, worklet in found]
    return {(FOLDER / name).parent.joinpath(address).resolve().relative_to(FOLDER).as_posix() for address in found}


def fetched_to_play() -> set[str]:
    """The files that a browser fetches before the page plays."""
    found, new = set(), {"index.html"}
    while new:
        found |= new
        new = {name for one in new for name in named_by(one)} - found
    return found


def test_opening_the_page_is_at_most_90_kib_on_the_wire() -> None:
    files = static_files()
    assert sum(len(files[name].packed) for name in fetched_to_play()) <= 90 * 1024


def test_what_is_loaded_at_first_use_is_served() -> None:
    later = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.*")} - fetched_to_play()
    assert {"midi/panel.js", "midi/panel.html", "help.html"} <= later
    for path in FOLDER.rglob("*.js"):
        for name in re.findall(r'new URL\("([^"]+)", import\.meta\.url\)', path.read_text(encoding="utf-8")):
            assert (path.parent / name).resolve().relative_to(FOLDER).as_posix() in static_files(), path.name


@pytest.mark.parametrize("name", ["missing.js", "..%2fpage.py", "%2e%2e%2f%2e%2e%2fconfig.py", "__init__.py"])
def test_other_files_are_not_served(served: Served, name: str) -> None:
    with served.client() as client:
        response = client.get(f"/page/{name}")
    assert response.status_code == 404
    assert response.headers["content-type"] == PROBLEM


def test_the_openapi_document_is_made_once(served: Served) -> None:
    with served.client() as client:
        response = client.get("/openapi.json")
        again = client.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.json() == served.app.openapi()
    assert again.content == response.content
    assert served.app.state.openapi_json() is served.app.state.openapi_json()


def test_the_page_needs_no_key(serve: Callable[..., Served]) -> None:
    with serve(api_key="k").client() as client:
        assert client.get("/").status_code == 200
        assert client.get("/page/main.js").status_code == 200
        assert client.get("/docs").status_code == 200
        assert client.get("/docs/live").status_code == 200
        assert client.get("/openapi.json").status_code == 401
        assert client.get("/v1/models").status_code == 401


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
