"""Tables for readers."""

from configs.demo.recipe.evaluation.report import Measured, markdown, table


def test_a_group_has_its_figures_and_tables() -> None:
    text = markdown({"one": Measured({"share": 0.123456}, {"Rows": [{"a": "x|y", "b": ["p", 2.5, {"q": 0.1}]}]})})
    assert text.splitlines() == [
        "# one", "", "| figure | value |", "| --- | --- |", "| share | 0.1235 |", "",
        "## Rows", "", "| a | b |", "| --- | --- |", "| x\\|y | p, 2.5, q 0.1 |",
    ]  # fmt: skip


def test_no_rows_are_none() -> None:
    assert table([]) == "none"
