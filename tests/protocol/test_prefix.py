"""Chains of block hashes: two texts share what their chains share, and nothing more."""

from hypothesis import given
from hypothesis import strategies as st

from meshnet_protocol.prefix import PREFIX_BLOCK_TOKENS, PREFIX_BLOCKS_MAX, prefix_chain, shared_tokens

tokens = st.lists(st.integers(0, 3), max_size=4 * PREFIX_BLOCK_TOKENS)


@given(tokens, tokens, tokens)
def test_chains_agree_as_far_as_the_texts_do_in_whole_blocks(start: list[int], one: list[int], two: list[int]) -> None:
    first, second = start + one, start + two
    agreed = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        agreed += 1

    assert (
        shared_tokens(prefix_chain(first), prefix_chain(second)) == agreed // PREFIX_BLOCK_TOKENS * PREFIX_BLOCK_TOKENS
    )


def test_a_block_that_comes_again_later_has_another_hash() -> None:
    chain = prefix_chain([5] * 3 * PREFIX_BLOCK_TOKENS)

    assert len(set(chain)) == len(chain) == 3


def test_a_chain_has_a_greatest_length() -> None:
    assert len(prefix_chain(range(PREFIX_BLOCK_TOKENS * (PREFIX_BLOCKS_MAX + 5)))) == PREFIX_BLOCKS_MAX
