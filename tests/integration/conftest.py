from __future__ import annotations

from pathlib import Path

import pytest
from helpers.cluster import cluster
from helpers.http_harness import serve, served, tiny
from helpers.paths import DEMO, DEMO_BUNDLE

from runtime.config.deployment import Deployment

__all__ = ["cluster", "serve", "served", "tiny"]


@pytest.fixture(scope="module")
def demo_config(tmp_path_factory: pytest.TempPathFactory, built_demo: Deployment) -> Path:
    """A configuration of the shipped demo with engines that are built, for server processes."""
    text = DEMO.read_text().replace('= "demo', f'= "{DEMO_BUNDLE}')
    config = tmp_path_factory.mktemp("demo_config") / "demo.toml"
    config.write_text(text.replace("[deployment]", f'[deployment]\nengines = "{built_demo.engines}"', 1))
    return config
