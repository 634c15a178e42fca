"""How prompts are cut for the pipeline."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_node.chunking import CHUNK_ROWS_MIN, chunk_rows


def seconds(row_count: int, rows: int, *, hop_count: int, overhead_rows: float) -> float:
    """By the model of the module's docstring, with a row's time on the whole model as the unit."""
    return (ceil(row_count / rows) + hop_count - 1) * (overhead_rows + rows) / hop_count


def test_a_route_of_one_hop_takes_the_largest_chunks() -> None:
    assert chunk_rows(128, hop_count=1, overhead_rows=1.0, rows_max=128) == 128


def test_a_short_prompt_on_two_hops_is_cut_so_that_both_work() -> None:
    assert chunk_rows(45, hop_count=2, overhead_rows=1.0, rows_max=128) == 15


def test_where_a_decode_costs_much_by_itself_a_short_prompt_stays_whole() -> None:
    assert chunk_rows(45, hop_count=2, overhead_rows=100.0, rows_max=128) == 45


@given(
    row_count=st.integers(1, 5000),
    hop_count=st.integers(1, 6),
    overhead_rows=st.floats(0, 1000),
    rows_max=st.integers(1, 512),
)
def test_chunks_are_never_larger_than_allowed_and_never_empty(
    row_count: int, hop_count: int, overhead_rows: float, rows_max: int
) -> None:
    rows = chunk_rows(row_count, hop_count=hop_count, overhead_rows=overhead_rows, rows_max=rows_max)
    assert 1 <= rows <= min(row_count, rows_max)


@pytest.mark.parametrize("row_count", [100, 700, 1500])
@pytest.mark.parametrize("overhead_rows", [0.5, 1.0, 10.0])
def test_no_other_size_is_much_faster(row_count: int, overhead_rows: float) -> None:
    rows = chunk_rows(row_count, hop_count=2, overhead_rows=overhead_rows, rows_max=512)
    mine = seconds(row_count, rows, hop_count=2, overhead_rows=overhead_rows)
    others = range(CHUNK_ROWS_MIN, 513)
    best = min(seconds(row_count, other, hop_count=2, overhead_rows=overhead_rows) for other in others)
    assert mine <= 1.05 * best
