"""Tasks: what the other options say, and what contradicts them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.factories import tiny_bundle

from runtime.base.errors import RequestError
from runtime.config.bundle import Bundle, load_bundle
from runtime.requests.options import GenerationOptions, parse_options
from runtime.requests.tasks import check_task, is_cover, known_tasks, task_of

SOURCE = np.zeros((32, 8), np.float32)
REPAINT = [{"start_s": 0.0, "end_s": 0.5}]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load_bundle(tiny_bundle(tmp_path_factory.mktemp("bundle"), conditions=True))


def options(**values: Any) -> GenerationOptions:
    return parse_options({"prompt": "a", **values})


def test_sources_and_masks_say_the_task() -> None:
    assert task_of(options(), None) == "text2music"
    assert task_of(options(), SOURCE) == "cover"
    assert task_of(options(repaint=REPAINT), SOURCE) == task_of(options(mask=[0.0, 1.0]), SOURCE) == "repaint"
    assert task_of(options(x0_strength=0.5), SOURCE) == "text2music"
    assert task_of(options(task="lego"), SOURCE) == "lego"
    assert is_cover(options(task="cover"), SOURCE)
    assert not is_cover(options(task="extract"), SOURCE)


def test_a_bundle_without_instructions_knows_what_sources_say(tmp_path: Path, bundle: Bundle) -> None:
    assert known_tasks(load_bundle(tiny_bundle(tmp_path))) == ["text2music", "cover", "repaint"]
    assert known_tasks(bundle) == ["text2music", "cover", "repaint", "extract", "complete"]


@pytest.mark.parametrize(
    ("values", "has_source"),
    [
        ({}, False), ({}, True), ({"task": "text2music"}, False), ({"task": "cover"}, True),
        ({"task": "repaint", "repaint": REPAINT}, True), ({"task": "extract", "track": "drums"}, True),
        ({"task": "complete", "track_classes": ["drums"]}, True),
        ({"task": "text2music", "target_curve": 0.5}, True),
    ],
)  # fmt: skip
def test_tasks_that_fit(bundle: Bundle, values: dict[str, Any], has_source: bool) -> None:
    check_task(options(**values), SOURCE if has_source else None, bundle)


@pytest.mark.parametrize(
    ("values", "has_source", "field", "says"),
    [
        ({"task": "cover"}, False, "task", "cover needs a source"),
        ({"task": "extract"}, False, "task", "extract needs a source"),
        ({"task": "text2music"}, True, "task", "takes no source"),
        ({"task": "repaint"}, True, "task", "needs repaint or mask"),
        ({"task": "cover", "repaint": REPAINT}, True, "task", "takes no repaint"),
        ({"task": "lego"}, True, "task", "no instruction for lego"),
        ({"track": "drums"}, True, "track", "no effect in task cover"),
        ({"task": "extract", "track_classes": ["drums"]}, True, "track_classes", "no effect in task extract"),
        ({"task": "extract", "track": "drums", "instruction": "x"}, True, "track", "beside an instruction"),
    ],
)
def test_contradictions_are_refused(
    bundle: Bundle, values: dict[str, Any], has_source: bool, field: str, says: str
) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        check_task(options(**values), SOURCE if has_source else None, bundle)
    assert caught.value.field == field
    assert caught.value.fix
