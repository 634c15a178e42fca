"""How hops name the beginning of a text without knowing it: a chain of hashes, one for each block of tokens.

    tokens:  |--- block 0 ---|--- block 1 ---|-- rest: not named --|
    chain:     h0 = H("",b0)   h1 = H(h0,b1)

Only the head knows token ids. Two chains that agree in their first n hashes are of texts that agree in their
first n blocks, so a hop that kept such a chain with a slot knows how much of a new prompt the slot holds.
"""

import hashlib
from array import array
from collections.abc import Sequence

PREFIX_BLOCK_TOKENS = 32
PREFIX_BLOCKS_MAX = 1024
"""Longer texts are remembered up to here: 32,768 tokens, a chain of 16 KiB."""
PREFIX_HASH_BYTES = 16
"""Wide enough that nobody finds two texts of one hash, and reads what another one wrote."""


def prefix_chain(tokens: Sequence[int]) -> tuple[bytes, ...]:
    """The hashes of all whole blocks of ``tokens``, at most ``PREFIX_BLOCKS_MAX``."""
    chain: list[bytes] = []
    link = b""
    for index in range(min(len(tokens) // PREFIX_BLOCK_TOKENS, PREFIX_BLOCKS_MAX)):
        block = array("q", tokens[index * PREFIX_BLOCK_TOKENS : (index + 1) * PREFIX_BLOCK_TOKENS])
        link = hashlib.blake2b(block.tobytes(), digest_size=PREFIX_HASH_BYTES, key=link).digest()
        chain.append(link)
    return tuple(chain)


def shared_tokens(chain: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Tokens at the beginning that both texts share, in whole blocks."""
    blocks = 0
    for mine, theirs in zip(chain, other, strict=False):
        if mine != theirs:
            break
        blocks += 1
    return blocks * PREFIX_BLOCK_TOKENS
