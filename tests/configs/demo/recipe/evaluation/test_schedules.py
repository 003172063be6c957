"""Distances to the converged solution and the search for times, on a solution that is known."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("librosa")

from configs.demo.recipe.evaluation import schedules
from configs.demo.recipe.evaluation.player import Piece
from configs.demo.recipe.evaluation.schedules import Judge, lengths_of, rows_of, search, times_of
from configs.demo.recipe.evaluation.steps import CONVERGED_STEPS
from configs.demo.recipe.latents import CHANNELS, SILENCE, FloatArray
from runtime.requests.timesteps import schedule

BEST = (1.0, 0.8, 0.6, 0.2)
SEEDS = (1, 100)


class DistantPlayer:
    """Latents are as far from the converged ones as a piece's times are from BEST."""

    pipeline = SimpleNamespace(bundle=SimpleNamespace(sampler=SimpleNamespace(shift=3.0)))

    def __init__(self) -> None:
        self.asked: list[Piece] = []

    def generate(self, pieces: Sequence[Piece]) -> list[FloatArray]:
        self.asked += pieces
        return [self.latents(piece) for piece in pieces]

    def latents(self, piece: Piece) -> FloatArray:
        found = np.full((16, CHANNELS), SILENCE + 1.0, np.float32)
        if "steps" in piece.options and piece.options["steps"] == CONVERGED_STEPS:
            return found
        times = piece.options.get("timesteps")
        if times is None:
            times = schedule(piece.options["steps"], shift=piece.options["shift"])[:-1].tolist()
        return found + np.float32(sum(abs(a - b) for a, b in zip(times, BEST, strict=True)))

    def decode(self, latents: FloatArray) -> FloatArray:
        return np.zeros((len(latents) * 1920, 2), np.float32)


def judge_of(player: DistantPlayer) -> Judge:
    return Judge.of(player, SEEDS)  # type: ignore[arg-type]


def test_the_converged_solution_is_guided_throughout_and_has_the_seeds_of_the_judge() -> None:
    player = DistantPlayer()
    judge = judge_of(player)
    assert len(judge.converged) == len(player.asked) == 2 * len(schedules.PROMPTS)
    assert {(piece.options["steps"], piece.options["cfg_interval_end"]) for piece in player.asked} == {(200, 1.0)}
    assert [piece.seed for piece in player.asked[:2]] == [1, 2]
    assert player.asked[len(schedules.PROMPTS)].seed == 100


def test_a_distance_is_relative_to_what_is_not_silent() -> None:
    judge = judge_of(DistantPlayer())
    assert judge.distance({"timesteps": BEST}) == 0.0
    assert judge.distance({"timesteps": (0.9, 0.8, 0.6, 0.2)}) == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"steps": 16, "cfg_interval_end": 1.0}, 32),
        ({"steps": 16, "cfg_interval_end": 0.5}, 29),
        ({"steps": 8, "cfg_interval_end": 0.5}, 15),
        ({"steps": 4, "shift": 1.0, "cfg_interval_end": 0.5}, 7),
        ({"timesteps": BEST, "cfg_interval_end": 0.3}, 6),
        ({"timesteps": BEST, "cfg_interval_start": 0.1, "cfg_interval_end": 0.3}, 5),
    ],
)
def test_a_step_has_a_second_row_where_it_is_guided(options: dict[str, object], rows: int) -> None:
    assert rows_of(options, 3.0) == rows


def test_lengths_and_times_are_inverse() -> None:
    assert times_of(lengths_of(BEST)) == list(BEST)
    assert times_of(2 * lengths_of(BEST)) == list(BEST)


def test_the_search_comes_closer_and_takes_no_more_rows() -> None:
    judge, said = judge_of(DistantPlayer()), list[str]()
    start = {"steps": 4, "shift": 3.0, "solver": "ab2", "cfg_interval_end": 0.25}
    found = search(judge, start, said.append)
    assert judge.distance({"timesteps": found}) < 0.5 * judge.distance(start)
    assert found[0] == 1.0
    assert all(later < earlier for earlier, later in zip(found, [*found[1:], 0.0], strict=True))
    assert rows_of({"timesteps": found, "cfg_interval_end": 0.25}, 3.0) <= rows_of(start, 3.0)
    distances = [float(line.split()[0]) for line in said]
    assert distances == sorted(distances, reverse=True)


def test_tables_compare_solvers_intervals_and_found_times() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedules, "COMPARED_STEPS", (4,))
        patch.setattr(schedules, "PROMPTS", schedules.PROMPTS[:1])
        judge = Judge.of(DistantPlayer(), (1,))  # type: ignore[arg-type]
        rows = list(schedules.compared(judge, {4: BEST}, 0.5))
    assert [row["steps"] for row in rows] == [
        "ode 4, guided to 1", "ode 4, guided to 0.5", "ab2 4, guided to 1", "ab2 4, guided to 0.5",
        "ab2 4, guided to 0.5, own times",
    ]  # fmt: skip
    assert [row["rows"] for row in rows] == [8, 8, 8, 8, 7]
    assert rows[-1]["distance"] == 0.0 < rows[0]["distance"]
