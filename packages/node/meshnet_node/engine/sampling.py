"""Drawing tokens from logits: the one owner of how, on every route.

The samplers are llama.cpp's own, in the order of its default chain: bias, penalties, top-k, top-p, min-p,
temperature, draw. What they draw with is made anew for every position from (seed, choice, position), and what
penalties and grammar remember follows from the prompt's last tokens and the tokens drawn. A session that
runs on another tail therefore draws the same tokens from the same logits.

A grammar is applied as llama.cpp applies it: the token is drawn without it, and only if the grammar refuses
that one are all candidates filtered and the same dice thrown again. Filtering costs a pass over the whole
vocabulary, and most tokens need none.
"""

import ctypes
import hashlib
import struct
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import llama_cpp
import numpy as np
import numpy.typing as npt

from meshnet_node.engine.grammar import make_grammar_sampler
from meshnet_protocol.messages import Sampling, TokenLogprobs

RANDOM_SEED = 0xFFFFFFFF
"""llama.cpp takes this seed for "draw one yourself"."""
GREEDY_BELOW = 1e-6
"""Temperatures that leave nothing to chance, and by which logits cannot be divided without leaving all floats."""
LOGPROB_MIN = -9999.0
"""Stands for impossible: JSON has no infinity."""

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

FloatRow = npt.NDArray[np.float32]


class SamplerVocabulary(Protocol):
    """What drawing must know of the model's vocabulary."""

    @property
    def size(self) -> int: ...
    @property
    def end_token(self) -> int: ...
    @property
    def handle(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Draw:
    token_id: int
    logprobs: TokenLogprobs | None = None


def draw_seed(seed: int, choice: int, position: int) -> int:
    """32 bits for the draw at ``position``, from a seed of any size and sign; never ``RANDOM_SEED``."""
    mixed = hashlib.blake2b(struct.pack("<Qqq", seed & (2**64 - 1), choice, position), digest_size=8).digest()
    return int.from_bytes(mixed, "little") % RANDOM_SEED


class TokenSampler:
    """Draws a session's tokens. Not thread-safe."""

    def __init__(self, sampling: Sampling, vocabulary: SamplerVocabulary) -> None:
        """Raises GrammarError if the grammar cannot be read."""
        self._sampling = sampling
        self._is_greedy = sampling.temperature < GREEDY_BELOW
        self._is_plain = self._is_greedy and not (sampling.has_penalties or sampling.logit_bias or sampling.grammar)
        self._end_token = vocabulary.end_token
        self._grammar = make_grammar_sampler(vocabulary.handle, sampling.grammar) if sampling.grammar else None
        self._chain = _make_chain(sampling, vocabulary.size)
        for made in (self._chain, self._grammar):
            if made is not None:
                weakref.finalize(self, llama_cpp.llama_sampler_free, made)
        for token_id in sampling.prompt_tail:
            llama_cpp.llama_sampler_accept(self._chain, token_id)
        for token_id in sampling.drawn:
            self._accept(token_id)
        self._candidates = np.zeros(0 if self._is_plain else vocabulary.size, _CANDIDATE)

    def draw(self, logits: FloatRow, *, position: int) -> Draw:
        """The token for ``position``. ``logits`` has one float for every token of the vocabulary.

        At temperature 0 that is the most likely one, the first of equals.
        """
        token_id = int(logits.argmax()) if self._is_plain else self._choose(logits, position)
        count = self._sampling.top_logprobs
        return Draw(token_id, None if count is None else logprobs_of(logits, token_id, count))

    def _choose(self, logits: FloatRow, position: int) -> int:
        token_id = self._throw(logits, position, self._chain)
        if self._grammar is not None and not self._grammar_allows(token_id):
            token_id = self._throw(logits, position, self._grammar, self._chain)
            if not self._grammar_allows(token_id):
                return self._end_token  # nothing the model has can go on from here
        self._accept(token_id)
        return token_id

    def _accept(self, token_id: int) -> None:
        llama_cpp.llama_sampler_accept(self._chain, token_id)
        # llama.cpp ends the process when a grammar is given a token it refuses.
        if self._grammar is not None and self._grammar_allows(token_id):
            llama_cpp.llama_sampler_accept(self._grammar, token_id)

    def _throw(self, logits: FloatRow, position: int, *samplers: Any) -> int:
        candidates = self._candidates
        candidates["id"] = np.arange(len(candidates), dtype=np.int32)
        candidates["logit"] = logits
        candidates["p"] = 0.0
        array = _array_over(candidates)
        pointer: Any = llama_cpp.llama_token_data_array_p(array)
        for sampler in samplers:
            llama_cpp.llama_sampler_apply(sampler, pointer)
        if self._is_greedy:
            best = candidates[: array.size]
            return int(best["id"][best["logit"].argmax()])
        dice = llama_cpp.llama_sampler_init_dist(draw_seed(self._sampling.seed, self._sampling.choice, position))
        try:
            llama_cpp.llama_sampler_apply(dice, pointer)
        finally:
            llama_cpp.llama_sampler_free(dice)
        return int(array.data[array.selected].id)

    def _grammar_allows(self, token_id: int) -> bool:
        one = np.zeros(1, _CANDIDATE)
        one["id"] = token_id
        one["logit"] = 1.0
        array = _array_over(one)
        pointer: Any = llama_cpp.llama_token_data_array_p(array)
        llama_cpp.llama_sampler_apply(self._grammar, pointer)
        return bool(np.isfinite(one["logit"][0]))


def logprobs_of(logits: FloatRow, token_id: int, count: int) -> TokenLogprobs:
    """What the model itself gave the token and the ``count`` likeliest, equals in the order of their ids."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    likeliest: list[int] = []
    if count:
        floor = np.partition(wide, -count)[-count]
        at_least = np.flatnonzero(wide >= floor)
        likeliest = [int(token) for token in at_least[np.argsort(-wide[at_least], kind="stable")][:count]]
    return TokenLogprobs(
        logprob=_finite(wide[token_id]), top=tuple((token, _finite(wide[token])) for token in likeliest)
    )


def _finite(value: float) -> float:
    return max(float(value), LOGPROB_MIN)


def _array_over(candidates: npt.NDArray[Any]) -> Any:
    return llama_cpp.llama_token_data_array(
        data=candidates.ctypes.data_as(llama_cpp.llama_token_data_p),
        size=len(candidates),
        selected=-1,
        sorted=False,
    )


def _make_chain(sampling: Sampling, vocabulary_size: int) -> Any:
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())

    def add(sampler: Any) -> None:
        llama_cpp.llama_sampler_chain_add(chain, sampler)

    if sampling.logit_bias:
        entries = [llama_cpp.llama_logit_bias(token=token, bias=bias) for token, bias in sampling.logit_bias]
        array = (llama_cpp.llama_logit_bias * len(entries))(*entries)
        pointer = ctypes.cast(array, llama_cpp.llama_logit_bias_p)
        add(llama_cpp.llama_sampler_init_logit_bias(vocabulary_size, len(entries), pointer))
    if sampling.has_penalties:
        penalties = (sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        add(llama_cpp.llama_sampler_init_penalties(vocabulary_size, sampling.penalty_tokens, *penalties))
    if sampling.temperature < GREEDY_BELOW:
        return chain
    if sampling.top_k > 0:
        add(llama_cpp.llama_sampler_init_top_k(sampling.top_k))
    if sampling.top_p < 1:
        add(llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1))
    if sampling.min_p > 0:
        add(llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1))
    add(llama_cpp.llama_sampler_init_temp(sampling.temperature))
    return chain
