"""Sphinx's configuration of the documentation: `make docs` writes the site to build/docs, `make test-docs` checks it.

Its pages are files of the repository where they lie, read as GitHub's Markdown: the READMEs, and those in pages/.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "runtime" / "api")]

from configs.docs.reference import DRAWN  # noqa: E402

PAGES = "configs/docs/pages"
# Title -> file, by sections. A README that is not named here comes last, under its own title.
NAVIGATION = {
    "Guide": {
        "A tour": f"{PAGES}/tour.md",
        "Play live": f"{PAGES}/live.md",
        "Generate": f"{PAGES}/generate.md",
        "Serve": "server/README.md",
        "Clients": "server/clients/README.md",
        "Other people's clients": "server/protocols/README.md",
        "Many machines": f"{PAGES}/machines.md",
        "How many machines": "server/cluster/README.md",
        "Images": "configs/images/README.md",
    },
    "Models": {
        "Your own model": f"{PAGES}/model.md",
        "Build engines": "engine_build/README.md",
        "An RTX card": f"{PAGES}/rtx.md",
        "The demo model": "configs/demo/README.md",
    },
    "Reference": {
        "Every command": f"{PAGES}/commands.md",
        "Every option": f"{PAGES}/options.md",
        "HTTP": f"{PAGES}/http.md",
        "The live protocol": "server/live/PROTOCOL.md",
        "Messages": f"{PAGES}/messages.md",
        "Python": f"{PAGES}/python.md",
        "When something goes wrong": f"{PAGES}/trouble.md",
    },
    "Inside": {
        "Architecture": f"{PAGES}/architecture.md",
        "How a tick works": f"{PAGES}/tick.md",
        "The runtime": "runtime/README.md",
        "Measure": "profiling/README.md",
        "How it compares": f"{PAGES}/compared.md",
        "Changes": "CHANGELOG.md",
    },
}
# Folders that have READMEs.
PACKAGES = ("configs", "engine_build", "profiling", "runtime", "server")
DRAWN_HERE = re.compile(r"<!-- drawn: (\w+) -->")
DRAWING = re.compile(r"!\[[^\]]*\]\((drawings/\w+\.svg)\)")
# Code blocks of PROTOCOL.md.
EXCHANGES = ("exchange", "notes", "plan", "beat")


def further_readmes() -> list[str]:
    """READMEs that NAVIGATION does not name."""
    named = {name for section in NAVIGATION.values() for name in section.values()}
    found = {path.relative_to(ROOT).as_posix() for folder in PACKAGES for path in (ROOT / folder).rglob("README.md")}
    return sorted(found - named)


project = "TickRT"
copyright = "Apache-2.0"
html_title = "TickRT"
language = "en"
root_doc = "README"
include_patterns = ["README.md", *(name for part in NAVIGATION.values() for name in part.values()), *further_readmes()]
exclude_patterns = ["**/.*", "build", "dist", "tests", "**/__pycache__"]
extensions = ["myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 5
# JSON with "..." in it, and other shortened code.
suppress_warnings = ["misc.highlighting_failure"]
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = False

# -- stays what a command has.
smartquotes = False

html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_favicon = "../../server/live/page/icon.svg"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_extra_path = ["index.html"]
html_copy_source = False
html_use_index = False
html_show_sphinx = False


def read_source(app: Sphinx, name: str, source: list[str]) -> None:
    """Draw what a page names, put its drawings into it, and give the first page the navigation."""
    text = DRAWN_HERE.sub(lambda found: DRAWN[found[1]](), source[0])
    folder = ROOT / PurePosixPath(name).parent
    text = DRAWING.sub(lambda found: figure(folder / found[1]), text)
    source[0] = text + navigation() if name == root_doc else text


def figure(path: Path) -> str:
    """A drawing inside of its page, where it has the colors of the chosen theme."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line]
    return "\n".join(['<figure class="drawn">', *lines, "</figure>"])


def navigation() -> str:
    """The directives that make the sidebar."""
    sections = {
        part: [f"{title} <{name.removesuffix('.md')}>" for title, name in named.items()]
        for part, named in NAVIGATION.items()
    }
    if others := further_readmes():
        sections["More"] = [name.removesuffix(".md") for name in others]
    trees = (
        "\n".join(["```{toctree}", ":hidden:", f":caption: {part}", "", *lines, "```"])
        for part, lines in sections.items()
    )
    return "\n\n" + "\n\n".join(trees) + "\n"


def setup(app: Sphinx) -> None:
    """What Sphinx calls when it has read this file."""
    app.connect("source-read", read_source)
    for name in EXCHANGES:
        app.add_lexer(name, TextLexer)
