"""What was built is remembered, the newest of it."""

from __future__ import annotations

import json
from pathlib import Path

from real_builder import judge


def test_the_oldest_verdicts_are_dropped(tmp_path: Path) -> None:
    file = tmp_path / "built.json"
    verdict = judge.Verdict("decoder", "fp32", 1.0, 2.0, 3.0, [])
    file.write_text(json.dumps({f"old {number}": {} for number in range(judge.KEPT)}))
    judge.remember(file, "new", verdict)
    found = json.loads(file.read_text())
    assert len(found) == judge.KEPT
    assert "old 0" not in found
    assert found["new"]["engine"] == "decoder"
