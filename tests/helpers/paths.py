"""Paths of the repository, for tests in any folder."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
DEMO = ROOT / "configs" / "demo.toml"
DEMO_BUNDLE = ROOT / "configs" / "demo"
