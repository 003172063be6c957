"""torch modules as ONNX files: free dimensions, external weights, their error."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


def export_linear(file: Path, width: int = 8) -> Any:
    from engine_build.export.torch_export import export_graph, free

    torch.manual_seed(0)
    module = torch.nn.Linear(width, 4)
    rows = free("rows", 64)
    export_graph(
        module, file, (torch.ones(3, width),), inputs=["x"], outputs=["y"], dynamic_shapes=({0: rows},),
        dimensions={"rows": "batch"},
    )  # fmt: skip
    return module


def test_the_graph_computes_what_the_module_computes(tmp_path: Path) -> None:
    from engine_build.export.torch_export import graph_error, module_outputs

    module, examples = export_linear(tmp_path / "linear.onnx"), [{"x": torch.randn(rows, 8)} for rows in (1, 7)]
    expected = module_outputs(module, examples)
    assert graph_error(tmp_path / "linear.onnx", examples, expected) < 1e-6
    assert graph_error(tmp_path / "linear.onnx", examples, [expected[0], expected[1] + 0.5]) == pytest.approx(
        0.5, abs=1e-5
    )


def test_free_dimensions_get_their_names(tmp_path: Path) -> None:
    export_linear(tmp_path / "linear.onnx")
    (x,) = onnx.load(tmp_path / "linear.onnx").graph.input
    assert [dim.dim_param or dim.dim_value for dim in x.type.tensor_type.shape.dim] == ["batch", 8]


def test_large_weights_go_into_a_data_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_build.export.torch_export.INLINE_LIMIT_BYTES", 64)
    export_linear(tmp_path / "linear.onnx", width=1024)
    assert (tmp_path / "linear.onnx.data").stat().st_size >= 1024 * 4 * 4


def test_warnings_are_suppressed_inside_quiet_only() -> None:
    from engine_build.export.torch_export import quiet

    with quiet():
        warnings.warn("inside", stacklevel=1)
    with pytest.raises(UserWarning, match="outside"):
        warnings.warn("outside", stacklevel=1)
