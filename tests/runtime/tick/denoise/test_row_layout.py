"""Row layout: a row for every condition of every slot, executes within their limits, unchanged rows in place."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.live_slots import FRAMES, MAX_TOKENS, condition, deployment, guided, live_slot
from hypothesis import given
from hypothesis import strategies as st

from runtime.config.deployment import CPU_TOKEN_MULTIPLE, GPU_TOKEN_MULTIPLE, ShapeRange
from runtime.requests.request import StepParameters
from runtime.tick.denoise.row_layout import LayoutRules, LiveSlot, RowLayout


def rules(max_rows: int = 8, *, fused: bool = True, folds_tokens: bool = True, row_multiple: int = 1) -> LayoutRules:
    return LayoutRules(deployment(max_rows, fused_guidance=fused), folds_tokens, row_multiple)


def lay_out(*live: LiveSlot, previous: RowLayout | None = None, **changes: Any) -> RowLayout:
    return rules(**changes).lay_out(FRAMES, live, previous)


def executed(layout: RowLayout) -> list[int]:
    return [row for begin, end, _ in layout.executes for row in range(begin, end)]


def rows_of_conditions(layout: RowLayout) -> dict[tuple[int, int], int]:
    """(slot index, id of the condition) -> row."""
    return {(layout.rows[row].slot_index, id(layout.rows[row].condition)): row for row in executed(layout)}


@st.composite
def slots(draw: st.DrawFn) -> list[LiveSlot]:
    """One to six slots at free indices, with up to three conditions and two negatives of any length."""
    indices = sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=6)))
    lengths = st.integers(1, MAX_TOKENS)
    return [
        live_slot(
            index,
            conditions=[condition(tokens) for tokens in draw(st.lists(lengths, min_size=1, max_size=3))],
            negatives=[condition(tokens) for tokens in draw(st.lists(lengths, max_size=2))],
            parameters=StepParameters(guidance=draw(st.sampled_from([1.0, 3.0]))),
        )
        for index in indices
    ]


@given(slots(), st.integers(1, 9), st.booleans(), st.booleans(), st.sampled_from([1, 2, 4]))
def test_executes_cover_every_row_once_within_their_limits(
    live: list[LiveSlot], max_rows: int, fused: bool, folds_tokens: bool, row_multiple: int
) -> None:
    layout = lay_out(*live, max_rows=max_rows, fused=fused, folds_tokens=folds_tokens, row_multiple=row_multiple)
    rows = executed(layout)
    assert rows == sorted(set(rows))
    assert sorted(row for own in (*layout.positives, *layout.negatives) for row in own) == rows
    assert layout.num_rows == len(rows)
    assert len(layout.rows) == rows[-1] + 1
    for begin, end, tokens in layout.executes:
        assert begin % row_multiple == 0
        assert 0 < end - begin <= max_rows
        lengths = [len(layout.rows[row].condition.tokens) for row in range(begin, end)]
        assert max(lengths) <= tokens <= MAX_TOKENS
        assert tokens % CPU_TOKEN_MULTIPLE == 0 if folds_tokens else set(lengths) == {tokens}


@given(slots(), st.integers(1, 9), st.booleans(), st.booleans())
def test_every_slot_has_a_row_for_each_of_its_conditions(
    live: list[LiveSlot], max_rows: int, fused: bool, folds_tokens: bool
) -> None:
    layout = lay_out(*live, max_rows=max_rows, fused=fused, folds_tokens=folds_tokens)
    for item, positives, negatives in zip(live, layout.positives, layout.negatives, strict=True):
        request = item.work.request
        expected = request.negatives if item.work.values.is_guided else ()
        for rows, conditions in ((positives, request.conditions), (negatives, expected)):
            assert [layout.rows[row].condition for row in rows] == list(conditions)
            assert {layout.rows[row].slot_index for row in rows} <= {item.slot.index}
    assert layout.slot_count == live[-1].slot.index + 1


@given(slots(), slots(), st.data())
def test_rows_that_stay_in_a_single_execute_keep_their_place(
    before: list[LiveSlot], joining: list[LiveSlot], data: st.DataObject
) -> None:
    """A row moves only where the batch became shorter than its index, or where row i then is slot i."""
    stays = data.draw(st.sets(st.sampled_from(before), min_size=1))
    taken = {item.slot.index for item in stays}
    joins = [item for item in joining if item.slot.index not in taken]
    after = sorted([*stays, *joins], key=lambda item: item.slot.index)
    old = lay_out(*before, max_rows=99)
    new = lay_out(*after, previous=old, max_rows=99)
    if [row.slot_index for row in new.rows] == list(range(len(new.rows))):
        return
    places = rows_of_conditions(new)
    for key, row in rows_of_conditions(old).items():
        if key in places and row < len(new.rows):
            assert places[key] == row


def test_rows_are_positives_in_slot_order_then_negatives() -> None:
    layout = lay_out(live_slot(0, **guided()), live_slot(1), live_slot(2, **guided()))
    assert [row.slot_index for row in layout.rows] == [0, 1, 2, 0, 2]
    assert layout.positives == ((0,), (1,), (2,))
    assert layout.negatives == ((3,), (), (4,))
    assert layout.executes == ((0, 5, 8),)
    assert layout.features == {"guidance"}
    assert not layout.is_identity


def test_guidance_of_one_costs_no_rows() -> None:
    layout = lay_out(live_slot(**guided(1.0)))
    assert (len(layout.rows), layout.features, layout.widths) == (1, set(), (1, 1))
    assert layout.is_identity


def test_two_pass_guidance_executes_positives_and_negatives_apart() -> None:
    layout = lay_out(live_slot(0, **guided()), live_slot(1, **guided()), fused=False)
    assert layout.executes == ((0, 2, 8), (2, 4, 8))


def test_more_rows_than_one_execute_takes_are_split_in_order() -> None:
    live = [live_slot(index, conditions=[condition() for _ in range(3)]) for index in range(4)]
    layout = lay_out(*live, max_rows=5)
    assert [execute[:2] for execute in layout.executes] == [(0, 5), (5, 10), (10, 12)]
    assert (layout.widths, layout.features) == ((3, 1), {"blend"})


def test_rows_between_two_executes_are_spare() -> None:
    layout = lay_out(*(live_slot(index) for index in range(5)), max_rows=3, row_multiple=4)
    assert [execute[:2] for execute in layout.executes] == [(0, 3), (4, 6)]
    assert (len(layout.rows), layout.num_rows) == (6, 5)
    assert layout.positives == ((0,), (1,), (2,), (4,), (5,))


def test_unequal_tokens_share_an_execute_only_with_a_condition_mask() -> None:
    live = [live_slot(index, conditions=[condition(tokens)]) for index, tokens in enumerate((3, 9, 3))]
    assert lay_out(*live).executes == ((0, 3, 16),)
    apart = lay_out(*live, folds_tokens=False)
    assert apart.executes == ((0, 2, 3), (2, 3, 9))
    assert apart.positives == ((0,), (2,), (1,))


def test_padded_tokens_stay_within_the_engines_range() -> None:
    assert lay_out(live_slot(conditions=[condition(MAX_TOKENS)])).executes == ((0, 1, MAX_TOKENS),)


def test_conditions_have_rows_in_their_part_of_the_schedule() -> None:
    early, late = condition(end=0.5), condition(start=0.5)
    seen = [lay_out(live_slot(step=step, conditions=(early, late))) for step in range(4)]
    assert [layout.rows[0].condition for layout in seen] == [early, early, late, late]
    assert [layout.num_ticks for layout in seen] == [2, 1, 2, 1]


def test_a_layout_holds_until_the_first_slot_changes_its_conditions() -> None:
    changing = live_slot(0, steps=8, conditions=(condition(end=0.25), condition(start=0.25)))
    assert lay_out(changing, live_slot(1, steps=8)).num_ticks == 2
    assert lay_out(live_slot(1, steps=8, step=3)).num_ticks == 5


def test_initialize_executes_its_negative_until_the_velocity_is_cached() -> None:
    live = live_slot(**guided(guidance_mode="initialize"))
    counts = []
    for has_cached_negative in (False, True):
        live.has_cached_negative = has_cached_negative
        live.refresh()
        layout = lay_out(live)
        counts.append((layout.num_rows, layout.uses_cached_negative))
    assert counts == [(2, (False,)), (1, (True,))]


def test_a_condition_that_is_also_a_negative_has_a_row_on_each_side() -> None:
    shared = condition()
    live = live_slot(conditions=(shared,), **guided(negatives=(shared,)))
    first = lay_out(live)
    assert (first.positives, first.negatives) == (((0,),), ((1,),))
    again = lay_out(live, live_slot(1), previous=first)
    own = [again.positives[0][0], again.negatives[0][0], again.positives[1][0]]
    assert sorted(own) == [0, 1, 2]
    assert [again.rows[row].slot_index for row in own] == [0, 0, 1]


def test_self_guidance_never_has_negative_rows() -> None:
    layout = lay_out(live_slot(guidance_mode="self", parameters=StepParameters(guidance=2.0)))
    assert (layout.num_rows, layout.uses_cached_negative) == (1, (True,))
    assert layout.features == {"guidance", "rcfg"}


def test_features_are_those_of_all_slots() -> None:
    gain = live_slot(1, parameters=StepParameters(channel_gain=2.0, ode_noise=0.1))
    layout = lay_out(live_slot(0, **guided()), gain)
    assert (layout.features, layout.row_features) == ({"guidance", "ode_noise"}, {"gain"})


@pytest.mark.parametrize(
    ("live", "is_identity"),
    [
        ([live_slot(0), live_slot(1)], True),
        ([live_slot(0), live_slot(2)], False),
        ([live_slot(0, parameters=StepParameters(channel_gain=2.0))], False),
        ([live_slot(0, conditions=[condition(), condition()])], False),
    ],
)
def test_latents_are_read_in_place_where_row_i_is_slot_i(live: list[LiveSlot], is_identity: bool) -> None:
    assert lay_out(*live).is_identity is is_identity


def gpu_rules(max_rows: int = 8, tokens: int = 500) -> LayoutRules:
    return LayoutRules(deployment(max_rows, target="tensorrt", depth=8, tokens=tokens), True, 1)


def with_tokens(index: int, tokens: int) -> LiveSlot:
    return live_slot(index, conditions=[condition(tokens)])


def test_on_a_gpu_a_tick_covers_all_slots_and_tokens_are_in_coarse_buckets() -> None:
    layout = gpu_rules().lay_out(FRAMES, [with_tokens(1, 60), with_tokens(4, 160)])
    assert (layout.slot_count, layout.executes) == (8, ((0, 2, 2 * GPU_TOKEN_MULTIPLE),))
    assert not layout.is_identity
    assert gpu_rules(tokens=100).lay_out(FRAMES, [with_tokens(0, 99)]).executes == ((0, 1, 100),)


def test_on_a_gpu_tokens_stay_where_that_costs_at_most_half() -> None:
    rules, alone = gpu_rules(), [with_tokens(0, 60)]
    used = [
        rules.lay_out(FRAMES, alone, rules.lay_out(FRAMES, [*alone, with_tokens(1, tokens)])).executes[0].tokens
        for tokens in (60, 160, 200)
    ]
    assert used == [96, 192, 96]


def test_on_a_gpu_rows_stay_in_their_places_also_where_all_slots_are_taken() -> None:
    rules = gpu_rules()
    slots = [live_slot(index) for index in range(8)]
    first = rules.lay_out(FRAMES, [slots[0], slots[2]])
    full = rules.lay_out(FRAMES, slots, first)
    assert [row.slot_index for row in full.rows[:2]] == [0, 2]
    assert not rules.lay_out(FRAMES, slots).is_identity
    alone = LayoutRules(deployment(target="tensorrt", depth=1), True, 1)
    assert alone.lay_out(FRAMES, slots[:1]).is_identity


def test_padded_tokens_stay_within_the_ranges_of_their_length() -> None:
    base = deployment(tokens=MAX_TOKENS)
    (short,) = base.shapes
    few = short.model_copy(
        update={"tokens": ShapeRange(min=1, opt=8, max=20), "frames": ShapeRange(min=2, opt=2, max=FRAMES)}
    )
    many = short.model_copy(update={"frames": ShapeRange(min=FRAMES + 2, opt=64, max=64)})
    rules = LayoutRules(base.model_copy(update={"shapes": (few, many)}), True, 1)
    live = [live_slot(conditions=[condition(18)])]
    assert rules.lay_out(FRAMES, live).executes == ((0, 1, 20),)
    assert rules.lay_out(64, live).executes == ((0, 1, 24),)


def test_behind_its_interval_guidance_pauses_without_rows() -> None:
    parameters = StepParameters(guidance=3.0, momentum=0.5, cfg_interval_end=0.5)
    live, seen = live_slot(steps=4, negatives=[condition(1)], parameters=parameters), []
    for live.slot.step in range(4):
        live.refresh()
        seen.append((len(live.negatives), *live.guidance_fields.values()))
    assert seen == [(1, 3.0, 0.5, None)] * 3 + [(0, None, 1.0, True)]
