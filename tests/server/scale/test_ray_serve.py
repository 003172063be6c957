"""The application and its configurations, with Ray's own schema; skipped where Ray is not installed."""

from __future__ import annotations

import pytest

pytest.importorskip("ray", reason="needs Ray (pip install 'tickrt[scale]'; make test-scale)")
yaml = pytest.importorskip("yaml")
