"""A chat that continues an earlier one computes only what is new, and says the same."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshnet_node.engine.thread import Engine, EngineSession, StepInput
from meshnet_protocol.ids import SessionId
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.prefix import prefix_chain
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


async def test_users_with_one_system_prompt_share_it_and_keep_their_own_chats(route: LocalRoute) -> None:
    def asked(question: str) -> list[dict[str, str]]:
        return [{"role": "system", "content": TALE}, {"role": "user", "content": question}]

    fresh = await route.chat("", messages=asked("Who lives there?"), max_tokens=12, cache_prompt=False)
    first = await route.chat("", messages=asked("What did he find? " * 40), max_tokens=4)
    second = await route.chat("", messages=asked("Who lives there?"), max_tokens=12)
    again = await route.chat("", messages=asked("What did he find? " * 40), max_tokens=4)

    assert cached_tokens(second) >= 64
    assert text_of(second) == text_of(fresh)
    assert cached_tokens(again) > first["usage"]["prompt_tokens"] - 32
    assert text_of(again) == text_of(first)


async def test_a_prompt_under_way_is_shared_as_far_as_it_is_computed(engines: list[Engine]) -> None:
    """What its owner computes afterwards, or forgets, does not show in the copy."""
    engine, text = engines[0], list(range(300, 364))
    chain = prefix_chain(text)

    async def last_row(session: EngineSession, start: int) -> bytes:
        result = await engine.step(session, StepInput(start, text[start:], None, wants_token=False))
        assert result.hidden is not None
        return bytes(result.hidden[-engine.hidden_size * 4 :])

    owner = engine.open_session(SessionId("owner"), engine.shard, None, prefix=chain)
    await engine.step(owner, StepInput(0, text[:45], None, wants_token=False))
    other = engine.open_session(SessionId("other"), engine.shard, None, prefix=chain)
    expected = await last_row(owner, 45)
    engine.close_session(owner)
    newcomer = engine.open_session(SessionId("newcomer"), engine.shard, None)
    await engine.step(newcomer, StepInput(0, [7] * 64, None, wants_token=False))

    assert (owner.held_tokens, other.held_tokens) == (0, 45)
    assert await last_row(other, 45) == expected
    for session in (other, newcomer):
        engine.close_session(session)


async def test_what_a_session_found_in_its_slot_is_shared_before_it_computes_and_no_more_than_it_keeps(
    engines: list[Engine],
) -> None:
    """A later hop may hold less of the prompt, and make it begin before the end of what this one holds."""
    engine, text = engines[0], list(range(700, 764))
    chain = prefix_chain(text)
    first = engine.open_session(SessionId("first"), engine.shard, None, prefix=chain)
    await engine.step(first, StepInput(0, text, None, wants_token=False))
    engine.close_session(first, remember=chain)

    owner = engine.open_session(SessionId("owner"), engine.shard, None, prefix=chain)
    at_once = engine.open_session(SessionId("at once"), engine.shard, None, prefix=chain)
    engine.close_session(at_once)
    under_way = engine.step(owner, StepInput(24, text[24:30], None, wants_token=False))
    later = engine.open_session(SessionId("later"), engine.shard, None, prefix=chain)
    await under_way
    for session in (owner, later):
        engine.close_session(session)

    assert (owner.held_tokens, at_once.held_tokens, later.held_tokens) == (64, 64, 24)


async def test_a_session_that_asks_for_nothing_cached_leaves_nothing(route: LocalRoute) -> None:
    unseen = [{"role": "system", "content": "A tale of seven seas and of a captain who had lost his ship. " * 4}]
    await route.chat("", messages=unseen, max_tokens=2, cache_prompt=False)

    assert cached_tokens(await route.chat("", messages=unseen, max_tokens=2)) == 0


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
