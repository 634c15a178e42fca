"""A hop that says nothing any more is found out by the hop before it, in time and by name."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import msgspec
import pytest

from meshnet_node import link
from meshnet_node.admission import Admission
from meshnet_node.engine.api import Engine
from meshnet_node.engine.loop import AnswerWanted
from meshnet_node.link import LINK_PATH
from meshnet_node.link_identity import LinkIdentity
from meshnet_node.relay import greeting_of
from meshnet_node.tracker_client import Membership, TrackerClient
from meshnet_node.tracker_trust import TrackerTrust
from meshnet_node.wallet import Wallet
from meshnet_protocol.frames import Greeting, OpenSession, SessionFailed, SessionOpened, decode_frame, encode_frame
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import PlannedHop, Sampling
from meshnet_tracker.testing import make_registration, running_tracker
from node.engine_helpers import options
from node.route_helpers import LocalRoute, local_route
from node.test_endings import silent_node

TOKEN_TIMEOUT_S = 0.6
TIMEOUT_S = 10.0


@pytest.fixture(scope="module")
def engines(model_path: Path, cache_dir: Path) -> Iterator[list[Engine]]:
    settings = options(cache_dir, slots=2, context_tokens=128, chunk_tokens=16)
    built = [Engine.load(model_path, LayerRange(*shard), settings) for shard in ((0, 1), (2, 3), (28, 29))]
    yield built
    for engine in built:
        engine.close()


async def ask_silent_tail(route: LocalRoute, silent_hop: PlannedHop) -> tuple[dict[str, Any], float]:
    plan = msgspec.structs.replace(route.plan(last=silent_hop), token_timeout_s=TOKEN_TIMEOUT_S)
    began = monotonic()
    async with asyncio.timeout(10):
        answer = await route.chat("Hi", plan=plan)
    return answer["error"], monotonic() - began


async def test_the_hop_next_to_the_silent_one_names_it_before_the_tracker_loses_patience(
    engines: list[Engine], tmp_path: Path
) -> None:
    async with silent_node(engines[0]) as silent_hop, local_route(engines, tmp_path) as route:
        error, waited_s = await ask_silent_tail(route, silent_hop)
        await route.wait_idle()
        middle = route.nodes[1].identity.node_id

    assert (error["code"], error["culprit"], error["reporter"]) == ("link", "silent", middle)
    assert waited_s < TOKEN_TIMEOUT_S


async def test_a_head_names_itself_as_the_one_who_hears_nothing(engines: list[Engine], tmp_path: Path) -> None:
    async with silent_node(engines[0]) as silent_hop, local_route([engines[0], engines[2]], tmp_path) as route:
        error, waited_s = await ask_silent_tail(route, silent_hop)
        await route.wait_idle()

    assert (error["code"], error["culprit"], error["reporter"]) == ("link", "silent", "")
    assert waited_s < TOKEN_TIMEOUT_S


async def test_what_a_later_hop_suffers_itself_is_its_own_fault_and_no_links(
    engines: list[Engine], tmp_path: Path
) -> None:
    async with local_route([engines[0], engines[2]], tmp_path) as route:
        tail = route.nodes[1].planned
        wrong = msgspec.structs.replace(tail, start_layer=29)
        error = (await route.chat("Hi", plan=route.plan(last=wrong)))["error"]

    assert (error["code"], error["culprit"], error["reporter"]) == ("entry_layer", tail.node_id, None)


async def test_a_nodes_health_is_that_of_its_engine(engines: list[Engine], tmp_path: Path) -> None:
    async with local_route([engines[0]], tmp_path) as route:
        url = f"{route.nodes[0].identity.url}/health"
        async with route.http.get(url) as well:
            assert well.status == 200
        goes_on = threading.Event()

        def hang() -> None:
            goes_on.wait(TIMEOUT_S)

        engines[0]._loop.inbox.put(AnswerWanted(hang))
        try:
            async with asyncio.timeout(TIMEOUT_S), route.http.get(url) as hung:
                assert hung.status == 503
        finally:
            goes_on.set()


async def test_a_session_whose_head_is_frozen_gives_its_slot_back(
    engines: list[Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that opens a session, sends nothing, and never says good-bye."""
    monkeypatch.setattr(link, "IDLE_S_MIN", 0.2)
    async with local_route([engines[0], engines[2]], tmp_path) as route:
        plan = msgspec.structs.replace(route.plan(), token_timeout_s=0.1)
        tail = route.nodes[1]
        async with route.http.ws_connect(tail.identity.url + LINK_PATH) as socket:
            head = LinkIdentity(
                greeting_of(route.nodes[0].identity.node_id, engines[0]), route.nodes[0].identity.wallet
            )
            await socket.send_bytes(encode_frame(mine := head.greet()))
            theirs, _ = decode_frame((await socket.receive(timeout=5)).data)
            assert isinstance(theirs, Greeting)
            await socket.send_bytes(encode_frame(head.prove(mine, theirs)))
            await socket.send_bytes(encode_frame(OpenSession(plan=plan, hop_index=1, sampling=Sampling())))
            async with asyncio.timeout(5):
                opened, _ = decode_frame((await socket.receive()).data)
                assert isinstance(opened, SessionOpened)
                assert tail.engine.queue_depth == 1
                failed, _ = decode_frame((await socket.receive()).data)
            assert isinstance(failed, SessionFailed)
            assert failed.code == "session_forsaken"
            await route.wait_idle()


async def test_heartbeats_go_on_while_the_engine_is_busy(engines: list[Engine], tmp_path: Path) -> None:
    """However long a decode takes, the tracker hears from the node: a slow one is not taken for a dead one."""
    goes_on = threading.Event()

    def hang() -> None:
        goes_on.wait(TIMEOUT_S)

    wallet = Wallet.load_or_create(tmp_path / "wallet.pem")
    node = make_registration("busy", "0-1", wallet=wallet.wallet_id, model=engines[0].card)

    async with (
        running_tracker(heartbeat_period_s=0.05) as tracker,
        aiohttp.ClientSession() as http,
        asyncio.TaskGroup() as tasks,
    ):
        membership = Membership(wallet, TrackerTrust())
        client = TrackerClient(http, tracker.url, engines[0], Admission(engines[0]), lambda: node, membership)
        beating = tasks.create_task(client.run())
        engines[0]._loop.inbox.put(AnswerWanted(hang))
        try:
            heard: set[float] = set()
            async with asyncio.timeout(TIMEOUT_S):
                while len(heard) < 10:
                    await asyncio.sleep(0.01)
                    known = tracker.server.fleet.node(node.node_id)
                    heard |= {known.heard_at} if known is not None else set()
        finally:
            goes_on.set()
            beating.cancel()
        assert [event["event"] for event in tracker.server.events.read(after=0)] == ["node joined"]
