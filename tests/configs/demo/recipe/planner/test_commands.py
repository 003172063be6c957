"""The planner's commands."""

from typer.testing import CliRunner

from configs.demo.recipe.__main__ import app


def test_the_planner_has_commands_of_its_own() -> None:
    text = CliRunner().invoke(app, ["planner", "--help"]).output
    assert all(command in text for command in ("train", "evaluate", "export"))
    assert "--minutes" in CliRunner().invoke(app, ["planner", "train", "--help"]).output
