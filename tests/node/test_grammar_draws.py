"""A grammar can take nothing but its own chat with it."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from meshnet_node.engine.grammar_draws import DrawPool, GrammarDraws
from meshnet_node.engine.sampling import Draw, TokenSampler
from meshnet_node.engine.thread import Engine
from meshnet_node.engine.vocabulary import Vocabulary
from meshnet_node.errors import EngineClosedError, GrammarError, NodeError
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import Sampling
from node.engine_helpers import Talk, options

ENDLESS = "root ::= " + "[^s]? " * 60 + '"!"'
LONG_TOKEN = 27244
"""Its text is " telecommunications": llama.cpp tries all ways to divide its letters among the optional parts, before
the last one shows that none will do. Each part doubles the time; with 20 of them it is 0.4 s, with 60 for ever."""
HOSTILE = Sampling(temperature=0, grammar=ENDLESS, logit_bias=((LONG_TOKEN, 100.0),))
DRAW_S_MAX = 0.5
PROMPT = [504, 3575, 282, 4649, 314]


@pytest.fixture(scope="module")
def vocabulary(model_path: Path) -> Vocabulary:
    return Vocabulary(model_path)


@pytest.fixture
def pool(model_path: Path) -> Iterator[DrawPool]:
    made = DrawPool(model_path, sessions_max=2, draw_s_max=DRAW_S_MAX)
    yield made
    made.close()


def noise(vocabulary: Vocabulary, position: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(position).standard_normal(vocabulary.size).astype(np.float32)


def drawn(draws: GrammarDraws, logits: np.ndarray[tuple[int], np.dtype[np.float32]], position: int) -> Draw | NodeError:
    told: list[Draw | NodeError] = []
    is_told = threading.Event()

    def take(outcome: Draw | NodeError) -> None:
        told.append(outcome)
        is_told.set()

    draws.draw(logits, position, take)
    assert is_told.wait(60)
    return told[0]


def test_draws_beside_the_engine_are_those_it_would_make(pool: DrawPool, vocabulary: Vocabulary) -> None:
    sampling = Sampling(temperature=1, seed=5, grammar='root ::= ([a-c] " ")*', top_logprobs=2, repeat_penalty=1.2)
    inside, beside = TokenSampler(sampling, vocabulary), pool.lease(sampling)
    rows = [noise(vocabulary, position) for position in range(6)]

    expected = [inside.draw(row, position=position) for position, row in enumerate(rows)]
    got = [drawn(beside, row, position) for position, row in enumerate(rows)]
    beside.close()

    assert got == expected


def test_a_grammar_that_takes_too_long_is_given_up_and_the_next_one_works(
    pool: DrawPool, vocabulary: Vocabulary
) -> None:
    endless = pool.lease(HOSTILE)
    began_s = time.perf_counter()
    outcome = drawn(endless, noise(vocabulary, 0), 0)
    endless.close()
    good = pool.lease(Sampling(temperature=0, grammar='root ::= "ab"'))
    answer = drawn(good, noise(vocabulary, 1), 1)
    good.close()

    assert isinstance(outcome, GrammarError)
    assert "longer than 0.5 s" in str(outcome)
    assert time.perf_counter() - began_s < 30
    assert isinstance(answer, Draw)


def test_reading_a_grammar_takes_no_longer_than_a_draw_may(pool: DrawPool) -> None:
    """Each level doubles the ways in which nothing can come before the first letter."""
    levels = "".join(f"a{level} ::= a{level + 1}? a{level + 1}?\n" for level in range(30))
    began_s = time.perf_counter()
    with pytest.raises(GrammarError):
        pool.check(f'root ::= a0\n{levels}a30 ::= "x"')
    with pytest.raises(GrammarError, match="cannot be read"):
        pool.check("root ::= nowhere")
    pool.check('root ::= "ab"')

    assert time.perf_counter() - began_s < 30


def test_a_grammar_that_cannot_be_read_says_why(pool: DrawPool, vocabulary: Vocabulary) -> None:
    outcome = drawn(pool.lease(Sampling(grammar="root ::= nowhere")), noise(vocabulary, 0), 0)

    assert isinstance(outcome, GrammarError)


async def test_other_chats_go_on_while_a_grammar_keeps_its_own_waiting(model_path: Path, cache_dir: Path) -> None:
    engine = Engine.load(model_path, LayerRange(0, 29), options(cache_dir, slots=2, context_tokens=1024))
    talk = Talk.open([engine])
    await talk.push(PROMPT)
    hostile = Talk.open([engine], sampling=HOSTILE)
    waiting = asyncio.ensure_future(hostile.push(PROMPT))
    longest_s = 0.0
    steps = 0
    while not waiting.done():
        began_s = time.perf_counter()
        await talk.push([40])
        longest_s, steps = max(longest_s, time.perf_counter() - began_s), steps + 1
    outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
    talk.close()
    hostile.close()
    slots_in_use = engine.queue_depth
    engine.close()

    assert isinstance(outcome, GrammarError)
    assert steps >= 10
    assert longest_s < 1.0
    assert slots_in_use == 0


async def test_a_client_that_leaves_ends_its_grammar_at_once(model_path: Path, cache_dir: Path) -> None:
    engine = Engine.load(model_path, LayerRange(0, 29), options(cache_dir, slots=2, context_tokens=128))
    hostile = Talk.open([engine], sampling=HOSTILE)
    waiting = asyncio.ensure_future(hostile.push(PROMPT))
    while not engine._loop._drawing:  # noqa: ASYNC110 - a look at a count
        await asyncio.sleep(0.005)
    hostile.close()
    began_s = time.perf_counter()
    with pytest.raises(EngineClosedError):
        await waiting
    engine.close()

    assert time.perf_counter() - began_s < 2.0
