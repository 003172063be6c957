"""The site of the documentation: it is built, its links lead somewhere, it needs no network, search works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from helpers.paths import ROOT

pytest.importorskip("sphinx", reason="needs the extra docs (make test-docs)")
pytestmark = pytest.mark.docs
DOCS = ROOT / "configs/docs"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# What a browser fetches to show a page: a link alone is no fetch.
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


class Elements(HTMLParser):
    """The ids of a page, its links, and what it fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in FETCHED and FETCHED[tag] in values and values.get("rel") not in ("canonical", "next", "prev"):
            self.fetched.append(values[FETCHED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A link between pages that leads nowhere ends the build, as every warning does."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--conf-dir", str(DOCS), "--builder", "html"]
    options += ["--doctree-dir", str(folder / "trees"), ".", str(folder / "html")]
    command = [sys.executable, "-m", "sphinx", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


@cache
def elements(path: Path) -> Elements:
    return Elements(path.read_text(encoding="utf-8"))


def ids(path: Path) -> set[str]:
    return elements(path).ids if path.is_file() else set()


def pages(site: Path) -> list[Path]:
    """Those of the site; a page that others link to as a program is none."""
    return [path for path in site.rglob("*.html") if "_downloads" not in path.parts and path != site / "index.html"]


def test_every_readme_is_a_page(site: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "*README.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    named = {name for name in tracked.stdout.split() if not name.startswith("tests/")}
    assert named
    for name in named:
        assert (site / name).with_suffix(".html").is_file(), name


def test_every_page_is_reached_from_the_first_one(site: Path) -> None:
    links = {urlsplit(link).path for link in elements(site / "README.html").links}
    own = {page.relative_to(site).as_posix() for page in pages(site)} - {"README.html", "search.html"}
    assert {f"configs/docs/pages/{path.stem}.html" for path in (DOCS / "pages").glob("*.md")} <= own
    assert own <= links


def test_every_link_leads_somewhere(site: Path) -> None:
    wrong = []
    for page in pages(site):
        for link in elements(page).links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (page.parent / unquote(url.path)).resolve() if url.path else page
            has_anchor = not url.fragment or target.suffix != ".html" or unquote(url.fragment) in ids(target)
            if not (target.is_file() and has_anchor):
                wrong.append((page.name, link))
    assert wrong == []


def test_addresses_of_others_are_addresses(site: Path) -> None:
    links = {link for page in pages(site) for link in elements(page).links if urlsplit(link).scheme}
    assert any(link.startswith("https://github.com/") for link in links)
    for link in links:
        url = urlsplit(link)
        assert url.scheme in ("https", "http"), link
        assert re.fullmatch(r"[\w.-]+(:\d+)?", url.netloc), link


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in pages(site):
        outside = [address for address in elements(page).fetched if urlsplit(address).netloc]
        assert outside == [], page.name
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style.name


def test_every_drawing_has_the_colors_of_its_page(site: Path) -> None:
    page = (site / "configs/docs/pages/tick.html").read_text(encoding="utf-8")
    assert page.count('<svg xmlns="http://www.w3.org/2000/svg" class="drawing"') == 2
    style = (DOCS / "style.css").read_text(encoding="utf-8")
    for path in (DOCS / "pages/drawings").glob("*.svg"):
        used = set(re.findall(r"var\((--\w+)\)", path.read_text(encoding="utf-8")))
        for theme in ("light", "dark"):
            colors = style.partition(f'body[data-theme="{theme}"] svg.drawing {{')[2].partition("}")[0]
            assert used <= set(re.findall(r"(--\w+):", colors)), f"{path.name}, {theme}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra page")
    path = os.environ.get("TICKRT_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no browser was found")
    with playwright.sync_playwright() as running:
        flags = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = running.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


def test_search_works_in_a_folder_without_a_network(site: Path, browser: Any) -> None:
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.wait_for_url("**/README.html")
    page.fill("input[name=q]", "adapter_rank")
    page.press("input[name=q]", "Enter")
    page.wait_for_selector("#search-results li a")
    assert "Generate" in page.inner_text("#search-results")
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.parametrize("width", [400, 1280])
def test_no_page_is_wider_than_the_screen(site: Path, browser: Any, width: int) -> None:
    page = browser.new_context(viewport={"width": width, "height": 800}).new_page()
    wide = []
    for path in pages(site):
        page.goto(path.as_uri())
        if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            wide.append(path.name)
    assert wide == []
