"""A chat that breaks off goes on elsewhere: told with heads that break in every way, over real sockets."""

import asyncio
from typing import Any

import aiohttp
import pytest

from meshnet_protocol.messages import ChoiceSoFar
from meshnet_tracker import tries
from meshnet_tracker.testing import PROMPT_TOKENS, TEN_PIECES, RunningTracker

from .test_proxy import TEXT, finished_chats, mesh, post, read_stream


def text_of(events: list[Any]) -> str:
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events[:-1] if event["choices"])


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("after", [1, 5, 10])
@pytest.mark.parametrize("way", ["breaks_after", "ends_after"])
async def test_what_breaks_off_goes_on_elsewhere_without_a_word_twice_or_missing(
    way: str, after: int, is_stream: bool
) -> None:
    async with mesh({way: after}, {}) as (tracker, (broken, sound)), post(tracker, stream=is_stream) as response:
        if is_stream:
            text = text_of(await read_stream(response))
        else:
            text = (await response.json())["choices"][0]["message"]["content"]
        (finished,) = await finished_chats(tracker)

    assert text == TEXT
    assert sound.requests[0].so_far == (ChoiceSoFar(token_ids=tuple(range(after))),)
    assert broken.requests[0].seed == sound.requests[0].seed
    assert (finished["outcome"], finished["attempts"], finished["is_sampled"]) == ("completed", 2, False)
    assert (finished["prompt_tokens"], finished["completion_tokens"]) == (PROMPT_TOKENS, 10)
    assert [run["completion_tokens"] for run in finished["runs"]] == [after, 10 - after]


async def test_a_chat_may_break_again_and_again_as_long_as_it_gets_on() -> None:
    heads = [{"breaks_after": after} for after in range(1, 8)]
    async with mesh(*heads, {}) as (tracker, _), post(tracker, stream=True) as response:
        events = await read_stream(response)
        (finished,) = await finished_chats(tracker)

    assert text_of(events) == TEXT
    assert (finished["outcome"], finished["attempts"]) == ("completed", 8)
    assert sum(run["completion_tokens"] for run in finished["runs"]) == finished["completion_tokens"] == 10


async def test_attempts_that_bring_nothing_are_few() -> None:
    async with mesh(*[{"breaks_after": 4}] * 6) as (tracker, running), post(tracker, stream=True) as response:
        events = await read_stream(response)
        (finished,) = await finished_chats(tracker)

    assert events[-2]["error"]["code"] == "node_lost"
    assert sum(len(head.requests) for head in running) == 1 + tries.FRUITLESS_ATTEMPTS_MAX
    assert finished["completion_tokens"] == 4


async def test_a_chat_that_nobody_can_begin_is_given_up_soon() -> None:
    async with mesh(*[{"breaks_after": 0}] * 6) as (tracker, running), post(tracker) as response:
        assert response.status == 503
        await finished_chats(tracker)

    assert sum(len(head.requests) for head in running) == tries.FRUITLESS_ATTEMPTS_MAX


async def test_two_failures_after_a_chat_got_on_do_not_end_it() -> None:
    heads: list[dict[str, Any]] = [{"breaks_after": 4}] * 3 + [{}]
    async with mesh(*heads) as (tracker, _), post(tracker, stream=True) as response:
        assert text_of(await read_stream(response)) == TEXT
        (finished,) = await finished_chats(tracker)

    assert [run["completion_tokens"] for run in finished["runs"]] == [4, 0, 0, 6]


async def test_a_head_that_begins_anew_instead_of_going_on_is_not_heard() -> None:
    async with mesh({"breaks_after": 4}, {"forgets": True}, {}) as (tracker, _), post(tracker, stream=True) as response:
        events = await read_stream(response)
        (finished,) = await finished_chats(tracker)

    assert text_of(events) == TEXT
    assert [run["completion_tokens"] for run in finished["runs"]] == [4, 0, 6]


async def test_what_is_complete_needs_nobody_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head breaks after its last word, before it has said how it spent its time."""
    async with mesh({"breaks_at_the_end": True}) as (tracker, _), post(tracker, stream=True) as response:
        events = await read_stream(response)
        (finished,) = await finished_chats(tracker)

    assert text_of(events) == TEXT
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert (finished["outcome"], finished["attempts"], finished["completion_tokens"]) == ("completed", 1, 10)
    assert not finished["is_sampled"]


async def test_a_head_that_cannot_go_on_with_a_chat_is_no_fault_of_the_client_nor_of_its_own() -> None:
    refusal = (400, {"message": "This model's maximum context length is 4 tokens", "code": "context_length_exceeded"})
    async with mesh({"breaks_after": 4}, {"refusal": refusal}, {}) as (tracker, _), post(tracker) as response:
        assert (await response.json())["choices"][0]["message"]["content"] == TEXT
        (finished,) = await finished_chats(tracker)
        faults = [node.faults.mass > 0 for node in tracker.server.fleet.nodes()]

    assert finished["attempts"] == 3
    assert faults == [True, False, False]


@pytest.mark.parametrize("is_stream", [True, False])
async def test_silence_ends_an_attempt_and_not_the_chat(is_stream: bool) -> None:
    """The first head freezes after the first word: no reset, no end, just nothing."""
    async with mesh({"freezes_after": 1}, {}, token_timeout_s=0.2) as (tracker, (frozen, sound)):
        async with asyncio.timeout(5), post(tracker, stream=is_stream) as response:
            await response.read()
        (finished,) = await finished_chats(tracker)
        node = next(node for node in tracker.server.fleet.nodes() if node.registration.url == frozen.url)

    assert sound.requests[0].so_far[0].token_ids == (0,)
    assert finished["outcome"] == "completed"
    assert (finished["runs"][0]["outcome"], finished["runs"][0]["culprit"]) == ("timeout", node.node_id)
    assert node.faults.mass > 0


async def test_a_head_that_takes_a_chat_and_never_accepts_it_is_given_up() -> None:
    async with mesh({}, {}, token_timeout_s=0.2) as (tracker, (silent, sound)):
        silent.accepts.clear()
        async with asyncio.timeout(5), post(tracker) as response:
            assert (await response.json())["choices"][0]["message"]["content"] == TEXT

    assert len(sound.requests) == 1


async def test_progress_of_the_prompt_is_a_sign_of_life_and_mere_noise_is_none() -> None:
    """Both heads take longer to their first word than the tracker is patient; one says why."""
    async with mesh({"noise": 1000}, {"prefill_steps": 6}, token_timeout_s=0.3) as (tracker, _):
        async with asyncio.timeout(10), post(tracker) as response:
            assert (await response.json())["choices"][0]["message"]["content"] == TEXT
        (finished,) = await finished_chats(tracker)

    assert [run["outcome"] for run in finished["runs"]] == ["timeout", "completed"]
    assert finished["is_sampled"], "nothing was drawn before, so the second route ran it from start to end"


async def test_a_chat_ends_in_time_whatever_it_does() -> None:
    async with mesh({"freezes_after": 3}, {}, chat_timeout_s=0.3) as (tracker, (_, other)):
        async with asyncio.timeout(5), post(tracker, stream=True) as response:
            events = await read_stream(response)
        (finished,) = await finished_chats(tracker)

    assert (events[-2]["error"]["code"], events[-1]) == ("node_lost", "[DONE]")
    assert finished["outcome"] == "timeout"
    assert other.requests == []


async def test_the_only_node_may_take_up_its_own_chat_again() -> None:
    async with (
        asyncio.timeout(10),
        mesh({"breaks_after": 2}) as (tracker, (head,)),
        post(tracker, stream=True) as response,
    ):
        async for line in response.content:
            if b"word1" in line:
                head.breaks_after = None
                break
        rest = await response.read()

    assert rest.count(b"word") == 8
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_pinned_chat_stays_on_its_route() -> None:
    async with mesh({"breaks_after": 2}, {}) as (tracker, (_, other)):
        pinned = next(node.node_id for node in tracker.server.fleet.nodes())
        async with post(tracker, stream=True, route=[pinned]) as response:
            events = await read_stream(response)

    assert events[-2]["error"]["code"] == "node_lost"
    assert other.requests == []


async def test_pieces_arrive_in_order_whatever_breaks() -> None:
    async with (
        mesh({"breaks_after": 3}, {"breaks_after": 7}, {}) as (tracker, _),
        post(tracker, stream=True) as response,
    ):
        events = await read_stream(response)

    words = [event["choices"][0]["delta"].get("content") for event in events[:-1]]
    assert words == ["", *TEN_PIECES, None]


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_chat_that_outlasts_the_trackers_end_is_told_so(is_stream: bool) -> None:
    async with mesh({"freezes_after": 2}, {}) as (tracker, (frozen, other)), asyncio.TaskGroup() as tasks:
        chat = tasks.create_task(_read(tracker, is_stream))
        await frozen.was_asked.wait()
        while tracker.server.proxy.running_tokens() < 2:  # noqa: ASYNC110 - a look at a count
            await asyncio.sleep(0.005)
        tracker.server.proxy.cut_off_all()
        status, text = await chat
        (finished,) = await finished_chats(tracker)

    assert status == (200 if is_stream else 503)
    assert "shutting_down" in text
    assert text.endswith("data: [DONE]\n\n") == is_stream
    assert finished["outcome"] == "shutdown"
    assert other.requests == []


async def _read(tracker: RunningTracker, is_stream: bool) -> tuple[int, str]:
    async with post(tracker, stream=is_stream) as response:
        return response.status, await response.text()


async def test_an_unreadable_refusal_is_the_heads_fault_and_not_the_clients() -> None:
    async with mesh({"refusal": (400, {})}, {}) as (tracker, _), post(tracker) as response:
        assert response.status == 200
        assert (await response.json())["choices"][0]["message"]["content"] == TEXT
        faults = [node.faults.mass > 0 for node in tracker.server.fleet.nodes()]

    assert faults == [True, False]


async def test_a_ticket_that_expired_on_its_way_is_nobodys_fault() -> None:
    """Node or tracker stood still, or a clock was set: neither can tell who."""
    refusal = (403, {"message": "the ticket expired 9 s ago", "code": "ticket_expired"})
    async with mesh({"refusal": refusal}, {}) as (tracker, _), post(tracker) as response:
        assert (await response.json())["choices"][0]["message"]["content"] == TEXT
        faults = [node.faults.mass > 0 for node in tracker.server.fleet.nodes()]

    assert faults == [False, False]


async def test_a_tracker_whose_only_route_has_just_failed_is_not_ready() -> None:
    async with mesh({"breaks_after": 0}) as (tracker, _), aiohttp.ClientSession() as http:

        async def is_ready() -> bool:
            async with http.get(f"{tracker.url}/health") as response:
                assert response.status == 200
                return bool((await response.json())["ready"])

        assert await is_ready()
        async with post(tracker) as response:
            assert response.status == 503
        assert not await is_ready()
