"""How hops name the beginning of a text without knowing it: a chain of hashes, one for each block of tokens.

    tokens:  |- block 0 -|- block 1 -| ... |--- block 16 ---| ... |-- rest: not named --|
    chain:    h0 = H("",b0) h1 = H(h0,b1)

Only the head knows token ids. Two chains that agree in their first n hashes are of texts that agree in their
first n blocks, so a hop that kept such a chain with a slot knows how much of a new prompt the slot holds.

Blocks are small at a text's beginning, because what texts have in common is often short (a template's own system
prompt), and a block that is half in common is worth nothing.
"""

import hashlib
from array import array
from collections.abc import Sequence

SMALL_BLOCK_TOKENS, SMALL_BLOCKS = 8, 16
"""So many tokens each, the first so many blocks."""
BLOCK_TOKENS = 32
"""Of all later ones."""
PREFIX_BLOCKS_MAX = 1024
"""Longer texts are remembered up to here: 32,384 tokens, a chain of 16 KiB."""
PREFIX_HASH_BYTES = 16
"""Wide enough that nobody finds two texts of one hash, and reads what another one wrote."""


def named_tokens(block_count: int) -> int:
    """Tokens that a chain of so many blocks names."""
    small = min(block_count, SMALL_BLOCKS)
    return small * SMALL_BLOCK_TOKENS + (block_count - small) * BLOCK_TOKENS


def prefix_chain(tokens: Sequence[int]) -> tuple[bytes, ...]:
    """The hashes of all whole blocks of ``tokens``, at most ``PREFIX_BLOCKS_MAX``."""
    chain: list[bytes] = []
    link, start = b"", 0
    while len(chain) < PREFIX_BLOCKS_MAX and (end := named_tokens(len(chain) + 1)) <= len(tokens):
        block = array("q", tokens[start:end])
        link = hashlib.blake2b(block.tobytes(), digest_size=PREFIX_HASH_BYTES, key=link).digest()
        chain.append(link)
        start = end
    return tuple(chain)


def shared_tokens(chain: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Tokens at the beginning that both texts share, in whole blocks."""
    blocks = 0
    for mine, theirs in zip(chain, other, strict=False):
        if mine != theirs:
            break
        blocks += 1
    return named_tokens(blocks)
