"""A chat that continues an earlier one computes only what is new, and says the same."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshnet_node.engine.thread import Engine
from meshnet_protocol.ids import SessionId
from meshnet_protocol.layers import LayerRange
from node.engine_helpers import options
from node.route_helpers import LocalRoute, local_route

CUT = 17
TALE = "Once upon a time an old keeper of a lighthouse found a boat on the rocks. " * 4
SLOTS = 2


@pytest.fixture(scope="module")
def engines(model_path: Path, cache_dir: Path) -> Iterator[list[Engine]]:
    settings = replace(options(cache_dir, slots=SLOTS, chunk_tokens=64), threads=1)
    shards = LayerRange(0, CUT - 1), LayerRange(CUT, 29)
    built = [Engine.load(model_path, shard, settings) for shard in shards]
    yield built
    for engine in built:
        engine.close()


@pytest.fixture
async def route(engines: list[Engine], tmp_path: Path) -> AsyncIterator[LocalRoute]:
    async with local_route(engines, tmp_path) as running:
        yield running
        await running.wait_idle()


def turns(first: str, answer: str, second: str) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": first},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": second},
    ]


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def cached_tokens(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_a_chat_that_goes_on_skips_what_all_hops_hold_and_says_the_same(route: LocalRoute) -> None:
    first = await route.chat(TALE, max_tokens=40)
    messages = turns(TALE, text_of(first), "And then?")
    fresh = await route.chat("", messages=messages, max_tokens=24, cache_prompt=False)
    reused = await route.chat("", messages=messages, max_tokens=24)
    again = await route.chat("", messages=messages, max_tokens=24)

    assert cached_tokens(fresh) == 0
    assert cached_tokens(reused) > first["usage"]["prompt_tokens"] - 32
    assert cached_tokens(again) >= cached_tokens(reused)
    assert text_of(fresh) == text_of(reused) == text_of(again)
    assert fresh["usage"]["prompt_tokens"] == reused["usage"]["prompt_tokens"]


async def test_a_prompt_that_turns_off_in_the_middle_reuses_what_comes_before(route: LocalRoute) -> None:
    await route.chat(TALE + "The boat was blue.", max_tokens=4)
    other = TALE + "The keeper was old and he had a daughter."
    fresh = await route.chat(other, max_tokens=24, cache_prompt=False)
    reused = await route.chat(other, max_tokens=24)

    assert 32 <= cached_tokens(reused) < reused["usage"]["prompt_tokens"]
    assert text_of(fresh) == text_of(reused)


async def test_hops_that_hold_different_amounts_agree_on_the_least(route: LocalRoute) -> None:
    await route.chat(TALE, max_tokens=2)
    expected = await route.chat(TALE, max_tokens=12, cache_prompt=False)
    await route.wait_idle()
    # The tail's slots are needed by somebody else meanwhile; the head's are not.
    tail = route.nodes[1].engine
    others = [tail.open_session(SessionId(f"other{number}"), tail.shard, None) for number in range(SLOTS)]
    for session in others:
        tail.close_session(session)

    answer = await route.chat(TALE, max_tokens=12)

    assert cached_tokens(answer) == 0
    assert text_of(answer) == text_of(expected)


async def test_a_session_that_asks_for_nothing_cached_leaves_nothing(route: LocalRoute) -> None:
    unseen = "A tale of seven seas and of a captain who had lost his ship. " * 4
    await route.chat(unseen, max_tokens=2, cache_prompt=False)

    assert cached_tokens(await route.chat(unseen, max_tokens=2)) == 0


async def test_slots_that_remember_are_free_for_others(route: LocalRoute) -> None:
    for number in range(SLOTS + 2):
        answer = await route.chat(f"Number {number}. {TALE}", max_tokens=2)
        assert answer["usage"]["completion_tokens"] == 2


async def test_a_re_cut_forgets_what_was_remembered(route: LocalRoute) -> None:
    expected = await route.chat(TALE, max_tokens=8)
    tail = route.nodes[1].engine
    await tail.recut(frozenset({CUT, 25}))
    answer = await route.chat(TALE, max_tokens=8)
    await tail.recut(frozenset({CUT}))

    assert cached_tokens(answer) == 0
    assert text_of(answer) == text_of(expected)
