"""Draws depend on seed and position only, and look like the distribution they are drawn from."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_node.engine.sampling import RANDOM_SEED, TokenSampler, draw_seed
from meshnet_protocol.messages import Sampling

VOCABULARY = 500
LOGITS = np.random.default_rng(5).standard_normal(VOCABULARY).astype(np.float32) * 3


class Numbers:
    """A vocabulary without words: enough for everything but a grammar."""

    size = VOCABULARY
    end_token = 0
    handle = None


def draws(sampling: Sampling, positions: range) -> list[int]:
    sampler = TokenSampler(sampling, Numbers())
    return [sampler.draw(LOGITS, position=position).token_id for position in positions]


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-38, 9e-7])
def test_without_temperature_the_most_likely_token_is_taken(temperature: float) -> None:
    assert draws(Sampling(temperature=temperature, seed=9), range(3)) == [int(LOGITS.argmax())] * 3


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, -(2**63), 2**80])
def test_a_draw_does_not_depend_on_earlier_draws(seed: int) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.9, seed=seed)

    assert draws(sampling, range(40))[25:] == draws(sampling, range(25, 40))


def test_seeds_and_positions_make_a_difference() -> None:
    texts = {tuple(draws(Sampling(seed=seed), range(10))) for seed in range(20)}

    assert len(texts) == 20
    assert len(set(draws(Sampling(seed=1), range(200)))) > 20


def test_draws_follow_the_models_probabilities() -> None:
    probabilities = np.exp(LOGITS - LOGITS.max())
    probabilities /= probabilities.sum()
    counts = Counter(draws(Sampling(seed=3), range(4000)))

    for token in np.argsort(-probabilities)[:5]:
        assert counts[int(token)] / 4000 == pytest.approx(probabilities[token], abs=0.03)


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [(Sampling(top_k=3, seed=1), 3), (Sampling(top_p=0.01, seed=1), 1), (Sampling(min_p=0.999, seed=1), 1)],
)
def test_truncation_leaves_only_the_likeliest(sampling: Sampling, allowed: int) -> None:
    likeliest = {int(token) for token in np.argsort(-LOGITS)[:allowed]}

    assert set(draws(sampling, range(300))) == likeliest


@given(st.integers(), st.integers(0, 127), st.integers(0, 2**31 - 1))
def test_a_draws_seed_is_never_the_one_that_means_random(seed: int, choice: int, position: int) -> None:
    assert 0 <= draw_seed(seed, choice, position) < RANDOM_SEED
