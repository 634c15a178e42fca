"""Tickets where they count: real engines on real sockets, two hops."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet_node.engine.thread import Engine
from meshnet_node.errors import RemoteHopError
from meshnet_node.link_identity import LinkIdentity
from meshnet_node.link_pool import LinkPool
from meshnet_node.relay import greeting_of
from meshnet_node.wallet import Wallet
from meshnet_protocol.frames import OpenSession
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import HeadRequest, RoutePlan, Sampling
from meshnet_tracker.ticket_office import TicketOffice
from node.engine_helpers import options
from node.route_helpers import LocalRoute, local_route

QUESTION = "Count from one to twenty."


@pytest.fixture(scope="module")
def engines(model_path: Path, cache_dir: Path) -> Iterator[list[Engine]]:
    settings = options(cache_dir, slots=2, context_tokens=256)
    made = [Engine.load(model_path, layers, settings) for layers in (LayerRange(0, 16), LayerRange(17, 29))]
    yield made
    for engine in made:
        engine.close()


async def error_of(route: LocalRoute, **fields: Any) -> tuple[int, dict[str, Any]]:
    async with route.http.post(route.chat_url, json=route.body(QUESTION, **fields)) as response:
        answer = await response.json()
    return response.status, answer["error"]


async def test_a_head_runs_nothing_without_a_ticket_of_its_tracker(engines: list[Engine], tmp_path: Path) -> None:
    async with local_route(engines, tmp_path) as route:
        plan = route.plan()
        stranger = TicketOffice(Ed25519PrivateKey.generate())
        for forged, code in (
            (msgspec.structs.replace(plan, ticket=""), "ticket"),
            (stranger.issue(plan, HeadRequest(), now=1e12), "ticket"),
            (route.office.issue(plan, HeadRequest(), now=0.0), "ticket_expired"),
        ):
            status, error = await error_of(route, plan=forged)
            assert (status, error["code"]) == (403, code)
        await route.wait_idle()


async def test_a_ticket_is_good_for_one_answer_at_every_hop(engines: list[Engine], tmp_path: Path) -> None:
    async with local_route(engines, tmp_path) as route:
        plan = route.plan(n=1)
        first = await route.chat(QUESTION, plan=plan, max_tokens=4)
        status, error = await error_of(route, plan=plan, max_tokens=4)
        assert first["choices"][0]["message"]["content"]
        assert (status, error["code"]) == (403, "ticket")
        assert "opened before" in error["message"]


async def test_a_request_cannot_open_more_answers_than_its_ticket_has(engines: list[Engine], tmp_path: Path) -> None:
    async with local_route(engines, tmp_path) as route:
        _, error = await error_of(route, plan=route.plan(n=2), n=3, max_tokens=2)
        assert error["code"] == "ticket"
        whole = await route.chat(QUESTION, plan=route.plan(n=3), n=3, max_tokens=2)
        assert len(whole["choices"]) == 3
        await route.wait_idle()


async def test_a_request_cannot_draw_more_tokens_than_its_ticket_has(engines: list[Engine], tmp_path: Path) -> None:
    async with local_route(engines, tmp_path) as route:
        exact = await route.chat(QUESTION, plan=route.plan(n=1, max_tokens=5), max_tokens=5, ignore_eos=True)
        assert exact["usage"]["completion_tokens"] == 5
        _, error = await error_of(route, plan=route.plan(n=1, max_tokens=5), max_tokens=6, ignore_eos=True)
        assert error["code"] == "ticket"
        assert "more tokens" in error["message"]
        await route.wait_idle()


async def test_a_later_hop_checks_for_itself_what_the_head_lets_through(engines: list[Engine], tmp_path: Path) -> None:
    """The head here trusts another tracker than the tail: its owner may be in league with somebody."""
    first, last = engines
    async with local_route([first], tmp_path / "a") as heads, local_route([last], tmp_path / "b") as tail:
        plan = heads.plan(last=tail.nodes[0].planned)
        both = msgspec.structs.replace(plan, hops=(heads.nodes[0].planned, tail.nodes[0].planned))
        for_head_only = heads.office.issue(both, HeadRequest(), now=time.time())
        status, error = await error_of(heads, plan=for_head_only)
        assert (status, error["code"]) == (502, "ticket")
        assert "not a ticket of the tracker this node trusts" in error["message"]


async def test_beyond_loopback_a_node_does_not_chat_with_whoever_comes(engines: list[Engine], tmp_path: Path) -> None:
    async with local_route(engines[:1], tmp_path, allows_direct=False) as route:
        body = {"messages": [{"role": "user", "content": QUESTION}]}
        alone = msgspec.structs.replace(route.plan(), ticket="")
        async with route.http.post(route.chat_url, json=body | {"meshnet": msgspec.to_builtins(alone)}) as response:
            assert response.status == 403 or (await response.json())["error"]["code"] == "plan"


@pytest.mark.parametrize(
    ("headers", "is_welcome"),
    [
        ({"Host": "192.0.2.7:8091"}, True),
        ({"Host": "localhost"}, True),
        ({"Host": "rebound.example"}, False),
        ({"Host": "["}, False),
        ({"Origin": "https://page.example"}, False),
        ({"Origin": "null"}, False),
    ],
)
async def test_a_web_page_reaches_nothing_of_a_node(
    engines: list[Engine], tmp_path: Path, headers: dict[str, str], is_welcome: bool
) -> None:
    async with local_route(engines[:1], tmp_path) as route:
        url = f"{route.nodes[0].identity.url}/health"
        async with route.http.get(url, headers=headers) as response:
            assert (response.status == 200) is is_welcome
            if not is_welcome:
                assert (await response.json())["error"]["code"] == "forbidden"


async def open_at_tail(route: LocalRoute, plan: RoutePlan, owner: Wallet | None) -> RemoteHopError | None:
    """Why a session cannot be opened at the route's last node over a link of ``owner``'s; None: it can."""
    head, tail = route.nodes
    identity = LinkIdentity(greeting_of(head.identity.node_id, head.engine), owner)
    async with asyncio.TaskGroup() as tasks:
        links = LinkPool(route.http, tasks, identity)
        try:
            link = await links.wait_link(tail.identity.node_id, tail.identity.url, tail.identity.wallet.wallet_id)
            session = link.add_session(plan.session_id)
            await session.wait_opened(OpenSession(plan=plan, hop_index=1, sampling=Sampling()))
            await session.close()
        except RemoteHopError as error:
            return error
        finally:
            await links.close()
    return None


async def test_a_session_is_taken_from_the_hop_before_and_from_nobody_who_has_its_ticket(
    engines: list[Engine], tmp_path: Path
) -> None:
    async with local_route(engines, tmp_path) as route:
        plan = route.plan()
        for thief in (None, Wallet.load_or_create(tmp_path / "thief.pem")):
            refusal = await open_at_tail(route, plan, thief)
            assert refusal is not None
            assert (refusal.code, "not from there" in str(refusal)) == ("ticket", True)
        assert await open_at_tail(route, plan, route.nodes[0].identity.wallet) is None
        await route.wait_idle()


async def test_a_node_that_does_not_own_the_wallet_the_tracker_names_gets_no_session(
    engines: list[Engine], tmp_path: Path
) -> None:
    async with local_route(engines, tmp_path) as route:
        plan = route.plan()
        owner = Wallet.load_or_create(tmp_path / "somebody.pem").wallet_id
        hops = (plan.hops[0], msgspec.structs.replace(plan.hops[1], wallet=owner))
        plan = route.office.issue(msgspec.structs.replace(plan, hops=hops), HeadRequest(), now=time.time())
        status, error = await error_of(route, plan=plan)
        assert (status, error["code"]) == (502, "link")
        assert owner in error["message"]
        await route.wait_idle()
