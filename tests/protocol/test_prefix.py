"""Chains of block hashes: two texts share what their chains share, and nothing more."""

from hypothesis import given
from hypothesis import strategies as st

from meshnet_protocol.prefix import (
    BLOCK_TOKENS,
    PREFIX_BLOCKS_MAX,
    SMALL_BLOCK_TOKENS,
    SMALL_BLOCKS,
    named_tokens,
    prefix_chain,
    shared_tokens,
)

SMALL_TOKENS = SMALL_BLOCKS * SMALL_BLOCK_TOKENS
starts = st.integers(0, SMALL_TOKENS + 3 * BLOCK_TOKENS).map(lambda count: [number % 5 for number in range(count)])
ends = st.lists(st.integers(0, 3), max_size=2 * BLOCK_TOKENS)


@given(starts, ends, ends)
def test_chains_agree_as_far_as_the_texts_do_in_whole_blocks(start: list[int], one: list[int], two: list[int]) -> None:
    first, second = start + one, start + two
    agreed = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        agreed += 1
    block = SMALL_BLOCK_TOKENS if agreed < SMALL_TOKENS else BLOCK_TOKENS

    assert shared_tokens(prefix_chain(first), prefix_chain(second)) == agreed // block * block


def test_a_block_that_comes_again_later_has_another_hash() -> None:
    chain = prefix_chain([5] * 3 * SMALL_BLOCK_TOKENS)

    assert len(set(chain)) == len(chain) == 3


def test_a_chain_names_all_whole_blocks_small_ones_first() -> None:
    assert [named_tokens(count) for count in (0, 1, SMALL_BLOCKS, SMALL_BLOCKS + 1)] == [0, 8, 128, 160]
    assert len(prefix_chain(range(159))) == SMALL_BLOCKS
    assert len(prefix_chain(range(160))) == SMALL_BLOCKS + 1


def test_a_chain_has_a_greatest_length() -> None:
    assert len(prefix_chain(range(named_tokens(PREFIX_BLOCKS_MAX) + 5 * BLOCK_TOKENS))) == PREFIX_BLOCKS_MAX
