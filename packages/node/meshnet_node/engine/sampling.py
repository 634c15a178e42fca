"""Drawing tokens from logits, so that a draw depends on seed and position and on nothing before it.

The samplers are llama.cpp's own, in the order of its default chain: top-k, top-p, min-p, temperature, draw.
What they draw with is made anew for every position from (seed, position). A session that moves to another
tail, or is resumed there, therefore draws the same tokens from the same logits.
"""

import hashlib
import struct
import weakref
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from meshnet_protocol.messages import Sampling

RANDOM_SEED = 0xFFFFFFFF
"""llama.cpp takes this seed for "draw one yourself"."""

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def draw_seed(seed: int, position: int) -> int:
    """32 bits for the draw at ``position``, from a seed of any size and sign; never ``RANDOM_SEED``."""
    mixed = hashlib.blake2b(struct.pack("<Qq", seed & (2**64 - 1), position), digest_size=8).digest()
    return int.from_bytes(mixed, "little") % RANDOM_SEED


class TokenSampler:
    """Draws a session's tokens. Not thread-safe."""

    def __init__(self, sampling: Sampling, *, vocabulary_size: int) -> None:
        self._seed = sampling.seed
        self._is_greedy = sampling.temperature <= 0
        self._chain = None if self._is_greedy else _make_chain(sampling)
        if self._chain is not None:
            weakref.finalize(self, llama_cpp.llama_sampler_free, self._chain)
        self._candidates = np.zeros(0 if self._is_greedy else vocabulary_size, _CANDIDATE)

    def draw(self, logits: npt.NDArray[np.float32], *, position: int) -> int:
        """The token for ``position``. ``logits`` has one float for every token of the vocabulary.

        At temperature 0 that is the most likely one, the first of equals.
        """
        if self._is_greedy:
            return int(logits.argmax())
        candidates = self._candidates
        candidates["id"] = np.arange(len(candidates), dtype=np.int32)
        candidates["logit"] = logits
        candidates["p"] = 0.0
        array = llama_cpp.llama_token_data_array(
            data=candidates.ctypes.data_as(llama_cpp.llama_token_data_p),
            size=len(candidates),
            selected=-1,
            sorted=False,
        )
        self._apply(array, draw_seed(self._seed, position))
        return int(array.data[array.selected].id)

    def _apply(self, array: Any, seed: int) -> None:
        pointer: Any = llama_cpp.llama_token_data_array_p(array)
        llama_cpp.llama_sampler_apply(self._chain, pointer)
        dice = llama_cpp.llama_sampler_init_dist(seed)
        try:
            llama_cpp.llama_sampler_apply(dice, pointer)
        finally:
            llama_cpp.llama_sampler_free(dice)


def _make_chain(sampling: Sampling) -> Any:
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    if sampling.top_k > 0:
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_top_k(sampling.top_k))
    if sampling.top_p < 1:
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1))
    if sampling.min_p > 0:
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1))
    llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_temp(sampling.temperature))
    return chain
