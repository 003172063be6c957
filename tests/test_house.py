"""The script that counts what the source is, on a tree of a few lines."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import house
import pytest

TREE = {
    "README.md": "# A\n\nB\n",
    "runtime/__init__.py": '"""Nothing."""\n',
    "runtime/errors.py": "class PlanError(Exception): ...\n",
    "runtime/apart.py": "ONE = 1\n",
    "runtime/notes/score.py": "",
    "runtime/tick/clock.py": "",
    "runtime/tick/loop.py": "from runtime.errors import PlanError\nfrom runtime.tick import clock\ndef run(): ...\n",
    "runtime/sessions/host.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from runtime.tick import loop\n"
        "def run():\n    from runtime.errors import PlanError\n"
        "class Host:\n    class Part: ...\n    async def take(self): ...\n"
    ),
    "server/app.py": "from runtime.sessions.host import Host\nclass Part: ...\ndef _run(): ...\n",
    "engine_build/cli.py": "",
    "profiling/cli.py": "",
    "configs/demo/recipe/train.py": "A = 1\n",
    "tests/test_app.py": (
        "def test(self, monkeypatch, app):\n    self._app = app\n"
        "    monkeypatch.setattr(app._host, '_a', app.__class__)\n"
    ),
}
VALUES = {
    "lines of runtime": 14,
    "lines of these four": 17,
    "lines of tests": 3,
    "lines of tests per line of source": round(3 / 18, 3),
    "parts of runtime": 4,
    "arrows between parts of runtime": 3,
    "levels of parts of runtime": 3,
    "parts of server": 0,
    "longest chain of imports": 4,
    "classes named *Plan*": 1,
    "public class names twice": 1,
    "public function names twice": 1,
    "monkeypatch.setattr in tests": 1,
    "private members in tests": 1,
    "lines of README.md": 3,
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write(tmp_path, TREE)


def write(root: Path, texts: Mapping[str, str]) -> Path:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def set_limits(root: Path) -> Path:
    """Limits at what is there now."""
    rows = [f'"{name}" = {{ limit = {count.value}, before = 0 }}\n' for name, count in house.counts(root).items()]
    return write(root, {"tests/house.toml": "".join(rows)}) / "tests/house.toml"


def test_what_is_counted(tree: Path) -> None:
    found = house.counts(tree)
    assert {name: found[name].value for name in VALUES} == VALUES


def test_large_classes_and_files_are_counted(tree: Path) -> None:
    for more, name in enumerate(("Full", "Large")):
        methods = "".join(f"    def run_{index}(self): ...\n" for index in range(house.MOST_METHODS + more))
        blank = "\n" * (house.MOST_LINES + more - house.MOST_METHODS - more - 1)
        write(tree, {f"server/{name}.py": f"class {name}:\n{methods}{blank}"})
    found = house.counts(tree)
    assert found[f"classes above {house.MOST_METHODS} methods"].items == {"server/Large.py: Large": 1}
    assert found[f"files above {house.MOST_LINES} lines"].items == {"server/Large.py": 1}


def test_every_row_has_a_limit_and_every_limit_a_row(tree: Path) -> None:
    limits = house.read_limits(house.LIMITS.read_text(encoding="utf-8"))
    assert limits.keys() == house.counts(tree).keys()
    assert all(limit.goal is None or limit.goal <= limit.limit for limit in limits.values())


def test_a_tree_within_its_limits_passes(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main(tree, set_limits(tree)) == 0
    assert "over" not in capsys.readouterr().out


@pytest.mark.parametrize("is_committed", [False, True])
def test_what_grew_since_the_limits_were_set_is_named(
    is_committed: bool, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tree, {"tests/house.toml": "", "runtime/errors.py": ""})
    commit(tree)
    limits = set_limits(write(tree, TREE))
    commit(tree)
    write(tree, {"runtime/errors.py": TREE["runtime/errors.py"] + "import runtime.apart\n"})
    if is_committed:
        commit(tree)
    assert house.main(tree, limits) == 1
    said = capsys.readouterr().out
    assert "lines of runtime: 15, limit 14" in said
    assert "+1 runtime/errors.py\n" in said
    assert "+1 runtime/errors.py -> runtime/apart.py\n" in said
    assert "host.py" not in said


def test_without_git_the_largest_are_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = set_limits(tree)
    write(tree, {"README.md": TREE["README.md"] + "C\n"})
    assert house.main(tree, limits) == 1
    assert "  largest:\n    4 README.md\n" in capsys.readouterr().out


def commit(root: Path) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in (("init", "--quiet"), ("add", "."), (*who, "commit", "--quiet", "--message", "a")):
        subprocess.run(["git", *arguments], cwd=root, check=True)
