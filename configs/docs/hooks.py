"""MkDocs' hooks: pages are files of the repository at their own paths, so links between them are those of the repository."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from configs.docs.reference import DRAWN

ROOT = Path(__file__).resolve().parents[2]
PAGES = "configs/docs/pages"
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
DRAWING = re.compile(r"!\[[^\]]*\]\((drawings/\w+\.svg)\)")
DRAWN_HERE = re.compile(r"<!-- drawn: (\w+) -->")


def pages_of(nav: Any) -> list[str]:
    """The files that a navigation names, in its order."""
    if isinstance(nav, str):
        return [nav]
    return [page for item in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(item)]


def linked_files(page: str) -> set[str]:
    """The files of the repository that a page links to, by their path in it."""
    folder = ROOT / PurePosixPath(page).parent
    targets = {(folder / link).resolve() for link in LINK.findall((ROOT / page).read_text(encoding="utf-8"))}
    return {target.relative_to(ROOT).as_posix() for target in targets if target.is_file() and ROOT in target.parents}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the pages of the navigation, and what they link to, in place of the files in docs_dir."""
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    pages = pages_of(config.nav)
    others = {name for page in pages for name in linked_files(page) if not name.endswith(".md")}
    for name in [*pages, *sorted(others), *config.extra_css, str(config.theme["favicon"])]:
        if name not in files.src_uris:
            files.append(_file(name, config))
    return files


def _file(name: str, config: MkDocsConfig) -> File:
    """A file of the repository; pages of PAGES come to the top of the site."""
    dest = name.removeprefix(f"{PAGES}/").removesuffix(".md") + ".html" if name.startswith(f"{PAGES}/") else None
    return File(name, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=dest)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw what a page names, and put its drawings into it, where they have the colors of the page."""
    markdown = DRAWN_HERE.sub(lambda found: DRAWN[found[1]](), markdown)
    folder = ROOT / PurePosixPath(page.file.src_uri).parent
    return DRAWING.sub(lambda found: _figure(folder / found[1]), markdown)


def _figure(path: Path) -> str:
    svg = path.read_text(encoding="utf-8").replace("\n\n", "\n")
    return f'<figure class="drawn">\n{svg}</figure>'
