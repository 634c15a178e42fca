"""More than the mesh can take: bounded waiting in fair turns, quick refusals, flat memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from meshnet_protocol.messages import Heartbeat
from meshnet_tracker import body_reader, proxy, turnstile
from meshnet_tracker.testing import FakeHead, NodeVoice, RunningTracker, make_registration

from .test_proxy import CHAT, finished_chats, mesh, post

FULL = (503, {"message": "all slots are taken", "code": "no_free_slot"})


@asynccontextmanager
async def full_mesh(**settings: Any) -> AsyncIterator[tuple[RunningTracker, FakeHead]]:
    async with mesh({"refusal": FULL}, **settings) as (tracker, (head,)):
        yield tracker, head


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - a look at a count
            await asyncio.sleep(0.005)


def waiting(tracker: RunningTracker) -> int:
    return sum(len(queue) for queue in tracker.server.proxy._turnstile._queues.values())


async def ask_as(tracker: RunningTracker, client: str, done: list[str]) -> int:
    url = f"{tracker.url}/v1/chat/completions"
    headers = {"Authorization": f"Bearer {client}"}
    async with aiohttp.ClientSession() as http, http.post(url, json=CHAT, headers=headers) as response:
        await response.read()
        done.append(client)
        return response.status


async def test_a_chat_waits_for_room_and_gets_it() -> None:
    async with full_mesh() as (tracker, head), asyncio.TaskGroup() as tasks:
        chat = tasks.create_task(ask_as(tracker, "a", []))
        await until(lambda: waiting(tracker) == 1)
        head.refusal = None
        async with asyncio.timeout(5):
            assert await chat == 200


async def test_a_flood_waits_for_itself_and_a_modest_client_is_soon_served() -> None:
    done: list[str] = []
    async with full_mesh() as (tracker, head), asyncio.TaskGroup() as tasks:
        for _ in range(10):
            tasks.create_task(ask_as(tracker, "flood", done))
        await until(lambda: waiting(tracker) == 10)
        tasks.create_task(ask_as(tracker, "modest", done))
        await until(lambda: waiting(tracker) == 11)
        head.refusal = None

    assert done.index("modest") <= 2
    assert len(done) == 11


async def test_who_has_most_waiting_is_refused_first_and_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnstile, "WAITING_MAX", 3)
    async with full_mesh() as (tracker, head), asyncio.TaskGroup() as tasks:
        flood = [tasks.create_task(ask_as(tracker, "flood", [])) for _ in range(3)]
        await until(lambda: waiting(tracker) == 3)
        async with asyncio.timeout(0.5):
            assert await ask_as(tracker, "flood", []) == 429
        modest = tasks.create_task(ask_as(tracker, "modest", []))
        await until(lambda: any(chat.done() for chat in flood))
        head.refusal = None
        assert await modest == 200

    assert sorted(chat.result() for chat in flood) == [200, 200, 429]


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    async with full_mesh() as (tracker, _):
        async with asyncio.TaskGroup() as tasks:
            chat = tasks.create_task(ask_as(tracker, "a", []))
            await until(lambda: waiting(tracker) == 1)
            chat.cancel()
        await until(lambda: waiting(tracker) == 0)
        (finished,) = await finished_chats(tracker)

    assert finished["outcome"] == "client_gone"


async def test_more_chats_than_the_tracker_takes_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "CHATS_MAX", 2)
    async with mesh({}) as (tracker, (head,)), asyncio.TaskGroup() as tasks:
        head.go.clear()
        running = [tasks.create_task(ask_as(tracker, "a", [])) for _ in range(2)]
        await until(lambda: len(tracker.server.proxy._chats) == 2)
        async with asyncio.timeout(0.5), post(tracker) as response:
            assert (response.status, response.headers["retry-after"]) == (503, "1")
            assert (await response.json())["error"]["code"] == "overloaded"
        head.go.set()
        assert [await chat for chat in running] == [200, 200]


async def raw(tracker: RunningTracker, head: bytes, talk: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> bytes:
    """What the tracker answers to bytes sent by hand."""
    host, port = tracker.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head)
    try:
        await talk(writer)
        async with asyncio.timeout(5):
            return await reader.readuntil(b"}}")
    finally:
        writer.close()


async def test_a_huge_body_is_refused_by_its_announcement_before_it_is_sent() -> None:
    async def say_nothing(_: asyncio.StreamWriter) -> None:
        pass

    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
    async with mesh({}) as (tracker, _):
        answer = await raw(tracker, head, say_nothing)
        (finished,) = await finished_chats(tracker)

    assert answer.startswith(b"HTTP/1.1 413")
    assert finished["outcome"] == "client_error"


async def test_a_body_without_end_is_refused_when_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_reader, "BODY_BYTES_MAX", 100_000)

    async def send_chunks(writer: asyncio.StreamWriter) -> None:
        for _ in range(20):
            writer.write(b"2710\r\n" + b" " * 10_000 + b"\r\n")
            await writer.drain()

    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with mesh({}) as (tracker, _):
        assert (await raw(tracker, head, send_chunks)).startswith(b"HTTP/1.1 413")


async def test_all_bodies_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_reader, "BODIES_BYTES_MAX", 1000)
    body = json.dumps(CHAT | {"user": "x" * 2000}).encode()
    async with mesh({}) as (tracker, _):
        async with post(tracker, body) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (503, "overloaded")
        async with post(tracker) as response:
            assert response.status == 200
        assert tracker.server.proxy._bodies._held_bytes == 0


async def test_a_client_that_stops_in_the_middle_of_its_body_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_reader, "BODY_SILENCE_S_MAX", 0.05)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
    async with mesh({}) as (tracker, _):
        host, port = tracker.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head)
        answer = await reader.read()
        (finished,) = await finished_chats(tracker)
        writer.close()

    assert answer.startswith(b"HTTP/1.1 408")
    assert b"request_timeout" in answer
    assert finished["outcome"] == "client_error"


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/nodes/register"])
async def test_a_body_that_trickles_in_holds_its_place_no_longer_than_one_that_stops(
    path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_reader, "BODY_SILENCE_S_MAX", 0.3)
    async with mesh({}) as (tracker, _), asyncio.TaskGroup() as tasks:
        host, port = tracker.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{" % path)
        answer = tasks.create_task(reader.read())
        async with asyncio.timeout(5):
            while not answer.done():
                writer.write(b" ")
                await asyncio.wait([answer], timeout=0.02)
        writer.close()
        assert (await answer).startswith(b"HTTP/1.1 408")


async def test_a_slow_body_that_keeps_coming_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_reader, "BODY_SILENCE_S_MAX", 0.3)
    body = json.dumps(CHAT | {"user": "x" * 8000}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 400):
            yield body[start : start + 400]
            await asyncio.sleep(0.03)

    async with mesh({}) as (tracker, _), post(tracker, pieces()) as response:
        assert response.status == 200


async def test_the_control_path_answers_at_once_while_every_chat_hangs() -> None:
    """Heads that say nothing keep their chats waiting, and nobody else: not heartbeats, not arrivals, not readers."""
    async with mesh({}, {}) as (tracker, heads), asyncio.TaskGroup() as tasks:
        for head in heads:
            head.accepts.clear()
        hanging = [tasks.create_task(ask_as(tracker, f"client {number}", [])) for number in range(40)]
        await until(lambda: tracker.server.router.in_flight_total == len(hanging))
        owner = NodeVoice(tracker.url)
        node = make_registration("late", "0-39", wallet=owner.wallet)
        beat = Heartbeat(node_id=node.node_id, incarnation=node.incarnation, queue_depth=0, entry_layers=(0,))
        async with asyncio.timeout(2), aiohttp.ClientSession(tracker.url) as http:
            assert (await owner.say("register", node))[0] == 200
            assert (await owner.say("heartbeat", beat))[1]["is_known"]
            for path in ("/health", "/v1/models", "/v1/nodes", "/v1/routing", "/v1/overview", "/metrics"):
                async with http.get(path) as response:
                    assert response.status == 200
        for task in hanging:
            task.cancel()
