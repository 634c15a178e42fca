"""Choosing the next batch: who goes first, who goes together, and that everybody's turn comes."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from meshnet_node.engine import batch
from meshnet_node.engine.batch import SHARED_PIECE_ROWS_MAX, Batch, ReadyRows, Stage

FIRST, SECOND = Stage(0, 0), Stage(0, 1)


def choose_batch(
    waiting: Sequence[ReadyRows],
    *,
    rows_max: int,
    after_decode: bool,
    session_count: int = 1,
    group_of: Callable[[int], Collection[int]] = lambda _: range(16),
) -> Batch | None:
    """Everybody in one group unless the test says otherwise."""
    return batch.choose_batch(
        waiting, rows_max=rows_max, after_decode=after_decode, session_count=session_count, group_of=group_of
    )


def ready(
    slot: int, rows: int = 1, stage: Stage = FIRST, *, turn: int | None = None, is_cut: bool = False
) -> ReadyRows:
    return ReadyRows(slot, stage, rows, is_cut, slot if turn is None else turn)


def test_nothing_ready_is_no_batch() -> None:
    assert choose_batch([], rows_max=64, after_decode=False) is None


def test_decode_steps_at_one_segment_share_a_batch() -> None:
    waiting = [ready(3), ready(0), ready(1, stage=SECOND)]

    assert choose_batch(waiting, rows_max=64, after_decode=False) == Batch(FIRST, (0, 3), 1)


def test_decode_steps_go_before_a_prompt_and_the_prompt_before_the_next_ones() -> None:
    waiting = [ready(0, 200), ready(1)]

    first = choose_batch(waiting, rows_max=64, after_decode=False)
    second = choose_batch(waiting, rows_max=64, after_decode=True)

    assert first == Batch(FIRST, (1,), 1)
    assert second == Batch(FIRST, (0,), 64)


def test_a_prompt_enters_in_small_pieces_while_others_are_there() -> None:
    chosen_batch = choose_batch([ready(0, 200)], rows_max=128, after_decode=True, session_count=2)

    assert chosen_batch == Batch(FIRST, (0,), SHARED_PIECE_ROWS_MAX)


def test_a_piece_stays_whole_at_later_segments() -> None:
    chosen_batch = choose_batch([ready(0, 90, SECOND, is_cut=True)], rows_max=128, after_decode=True, session_count=4)

    assert chosen_batch == Batch(SECOND, (0,), 90)


def test_a_group_of_decode_steps_goes_without_the_others() -> None:
    waiting = [ready(slot, turn=9 - slot) for slot in (0, 1, 2, 3)]

    chosen_batch = choose_batch(
        waiting, rows_max=64, after_decode=False, group_of=lambda slot: (0, 1) if slot < 2 else (2, 3)
    )

    assert chosen_batch == Batch(FIRST, (2, 3), 1)


def test_the_generation_with_the_longest_waiting_step_goes_first() -> None:
    newer = Stage(1, 0)
    waiting = [ready(0, stage=FIRST, turn=5), ready(1, stage=newer, turn=4)]

    assert choose_batch(waiting, rows_max=64, after_decode=False) == Batch(newer, (1,), 1)


@st.composite
def crowds(draw: st.DrawFn) -> list[ReadyRows]:
    slots = draw(st.lists(st.integers(0, 15), unique=True, max_size=8))
    stages = st.builds(Stage, st.integers(0, 2), st.integers(0, 3))
    rows = st.integers(1, 300)
    crowd = [ready(slot, draw(rows), draw(stages), is_cut=draw(st.booleans())) for slot in slots]
    turns = draw(st.permutations(range(len(crowd))))
    # A piece that is cut already was cut to fit.
    return [
        replace(one, turn=turn, row_count=min(one.row_count, 32) if one.is_cut else one.row_count)
        for one, turn in zip(crowd, turns, strict=True)
    ]


@given(crowds(), st.integers(8, 128), st.booleans(), st.integers(0, 8))
def test_a_batch_is_rows_that_are_ready_at_one_stage_and_fit(
    crowd: list[ReadyRows], rows_max: int, after_decode: bool, session_count: int
) -> None:
    rows_max = max(rows_max, 32)
    chosen_batch = choose_batch(crowd, rows_max=rows_max, after_decode=after_decode, session_count=session_count)

    assert (chosen_batch is None) == (not crowd)
    if chosen_batch is None:
        return
    chosen = [one for one in crowd if one.slot in chosen_batch.slots]
    assert len(chosen) == len(chosen_batch.slots) == len(set(chosen_batch.slots))
    assert list(chosen_batch.slots) == sorted(chosen_batch.slots)
    assert all(one.stage == chosen_batch.stage for one in chosen)
    assert all(one.row_count == chosen_batch.row_count for one in chosen if one.is_cut)
    assert all(1 <= chosen_batch.row_count <= one.row_count for one in chosen)
    assert chosen_batch.row_count * len(chosen_batch.slots) <= rows_max
    assert len(chosen) == 1 or chosen_batch.row_count == 1


@given(crowds(), st.booleans())
def test_everybody_is_served_in_the_end(crowd: list[ReadyRows], after_decode: bool) -> None:
    left = {one.slot: one for one in crowd}
    budget = sum(one.row_count for one in crowd)
    while left:
        chosen_batch = choose_batch(
            list(left.values()), rows_max=64, after_decode=after_decode, session_count=len(left)
        )
        assert chosen_batch is not None
        for slot in chosen_batch.slots:
            rest = left[slot].row_count - chosen_batch.row_count
            left[slot] = replace(left[slot], row_count=rest, is_cut=False)
            if not rest:
                del left[slot]
        after_decode = not chosen_batch.is_prefill
        budget -= 1
        assert budget >= 0


@given(crowds())
def test_neither_prompts_nor_decode_steps_wait_for_two_batches_of_the_other_kind(crowd: list[ReadyRows]) -> None:
    kinds = {one.row_count > 1 for one in crowd}
    if kinds != {True, False}:
        return

    first = choose_batch(crowd, rows_max=64, after_decode=False)
    assert first is not None
    second = choose_batch(crowd, rows_max=64, after_decode=not first.is_prefill)
    assert second is not None

    assert first.is_prefill != second.is_prefill
