"""Links between hops, on real sockets with a real engine: garbage ends a link, never a node."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import msgspec
import pytest
from aiohttp import web

from meshnet_node.engine.api import Engine, EngineOptions
from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.errors import LinkError, RemoteHopError
from meshnet_node.http_face import bind, serving
from meshnet_node.link import LINK_PATH
from meshnet_node.link_identity import LinkIdentity
from meshnet_node.link_pool import LinkPool
from meshnet_node.link_server import LinkServer
from meshnet_node.model_source import resolve_model
from meshnet_node.relay import HopService, greeting_of
from meshnet_protocol.frames import (
    CloseSession,
    Greeting,
    OpenSession,
    SessionOpened,
    Step,
    decode_frame,
    encode_frame,
)
from meshnet_protocol.ids import ModelKey, NodeId, SessionId
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import PROTOCOL_VERSION, PlannedHop, RoutePlan, Sampling

HEAD, TAIL = NodeId("head.w@0-16"), NodeId("tail.w@17-29")
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def tail_engine(tmp_path_factory: pytest.TempPathFactory) -> object:
    options = EngineOptions(cache_dir=tmp_path_factory.mktemp("cache"), slots=2, context_tokens=256)
    engine = Engine.load(resolve_model("smollm2"), LayerRange(17, 29), options)
    yield engine
    engine.close()


@asynccontextmanager
async def tail_node(engine: Engine) -> AsyncIterator[tuple[str, aiohttp.ClientSession, LinkPool]]:
    """The tail serving its link on a real port, and a neighbour's link pool."""
    with bind("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as tasks:
            links = LinkPool(http, tasks, LinkIdentity(greeting_of(HEAD, engine)))
            app = web.Application()
            app.router.add_get(LINK_PATH, LinkServer(HopService(TAIL, engine, links)).serve)
            async with serving(app, listener):
                yield url, http, links
                await links.close()


@cache
def smollm2_key() -> ModelKey:
    with TemporaryDirectory() as folder:
        return ModelFile.open(resolve_model("smollm2")).card(Path(folder)).model_key


def plan_to(
    url: str,
    session: str = "s1",
    *,
    start_layer: int = 17,
    node_id: NodeId = TAIL,
    end_layer: int = 29,
    model_key: ModelKey | None = None,
) -> RoutePlan:
    return RoutePlan(
        session_id=SessionId(session),
        model_key=model_key or smollm2_key(),
        hops=(
            PlannedHop(node_id=HEAD, url="http://127.0.0.1:9", start_layer=0, end_layer=start_layer - 1),
            PlannedHop(node_id=node_id, url=url, start_layer=start_layer, end_layer=end_layer),
        ),
    )


def opening(plan: RoutePlan) -> OpenSession:
    return OpenSession(plan=plan, hop_index=1, sampling=GREEDY)


async def test_a_session_opens_steps_and_closes_over_a_link(tail_engine: Engine) -> None:
    async with tail_node(tail_engine) as (url, _, links):
        link = await links.wait_link(TAIL, url)
        session = link.add_session(SessionId("s1"))
        await session.wait_opened(opening(plan_to(url)))
        assert tail_engine.queue_depth == 1

        step = Step(session_id=SessionId("s1"), position=0, token_count=2, wants_token=True)
        rows = memoryview(bytes(2 * tail_engine.hidden_size * 4))
        reply = await session.wait_reply(await session.send_step(step, rows))

        assert reply.token_id is not None
        assert [timing.node_id for timing in reply.timings] == [TAIL]
        await session.close()
        await until(lambda: tail_engine.queue_depth == 0)


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        (lambda url: plan_to(url, start_layer=20), "entry_layer"),
        (lambda url: plan_to(url, node_id=NodeId("other.w@17-29")), "plan"),
        (lambda url: plan_to(url, model_key=ModelKey("SmolLM2-135M-Instruct@other")), "plan"),
        (lambda url: plan_to(url, end_layer=28), "plan"),
    ],
)
async def test_a_hop_refuses_what_it_cannot_run_and_says_who_refused(
    tail_engine: Engine, plan: Callable[[str], RoutePlan], code: str
) -> None:
    async with tail_node(tail_engine) as (url, _, links):
        session = (await links.wait_link(TAIL, url)).add_session(SessionId("s1"))
        with pytest.raises(RemoteHopError) as refused:
            await session.wait_opened(opening(plan(url)))
    assert (refused.value.code, refused.value.culprit) == (code, TAIL)


async def test_a_full_hop_refuses_the_next_session(tail_engine: Engine) -> None:
    async with tail_node(tail_engine) as (url, _, links):
        link = await links.wait_link(TAIL, url)
        sessions = [link.add_session(SessionId(name)) for name in ("a", "b", "c")]
        for session in sessions[:2]:
            await session.wait_opened(opening(plan_to(url, session.session_id)))
        with pytest.raises(RemoteHopError) as refused:
            await sessions[2].wait_opened(opening(plan_to(url, "c")))
        assert refused.value.code == "no_free_slot"
    await until(lambda: tail_engine.queue_depth == 0)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xff" * 64,
        encode_frame(SessionOpened(session_id=SessionId("s1"), context_tokens=1)),
        encode_frame(Step(session_id=SessionId("s1"), position=0, token_count=1, wants_token=True), b"short"),
        encode_frame(Step(session_id=SessionId("s1"), position=0, token_count=10**6, wants_token=True)),
    ],
)
async def test_garbage_ends_the_link_with_a_reason_and_the_node_goes_on(tail_engine: Engine, garbage: bytes) -> None:
    async with tail_node(tail_engine) as (url, http, links):
        async with greeted(http, url, tail_engine) as socket:
            await socket.send_bytes(garbage)
            message = await socket.receive(timeout=5)
            assert message.type is aiohttp.WSMsgType.CLOSE
            assert message.data == 1002
            assert message.extra

        link = await links.wait_link(TAIL, url)
        await link.add_session(SessionId("s2")).wait_opened(opening(plan_to(url, "s2")))
    await until(lambda: tail_engine.queue_depth == 0)


async def test_sessions_end_with_the_link_they_came_on(tail_engine: Engine) -> None:
    async with tail_node(tail_engine) as (url, http, _):
        async with greeted(http, url, tail_engine) as socket:
            await socket.send_bytes(encode_frame(opening(plan_to(url))))
            header, _ = decode_frame((await socket.receive(timeout=5)).data)
            assert header == SessionOpened(session_id=SessionId("s1"), context_tokens=256)
        await until(lambda: tail_engine.queue_depth == 0)


async def test_a_step_of_more_rows_than_the_hops_own_chunk_is_taken(tail_engine: Engine) -> None:
    rows = tail_engine.options.chunk_tokens + 1
    async with tail_node(tail_engine) as (url, _, links):
        session = (await links.wait_link(TAIL, url)).add_session(SessionId("s1"))
        await session.wait_opened(opening(plan_to(url)))
        step = Step(session_id=session.session_id, position=0, token_count=rows, wants_token=True)
        hidden = memoryview(bytes(rows * tail_engine.hidden_size * 4))
        assert (await session.wait_reply(await session.send_step(step, hidden))).token_id is not None


async def test_a_session_that_is_closed_while_it_opens_can_be_opened_again(tail_engine: Engine) -> None:
    async with tail_node(tail_engine) as (url, http, _), greeted(http, url, tail_engine) as socket:
        for frame in (opening(plan_to(url)), CloseSession(session_id=SessionId("s1")), opening(plan_to(url))):
            await socket.send_bytes(encode_frame(frame))
        header, _ = decode_frame((await socket.receive(timeout=5)).data)
        assert isinstance(header, SessionOpened)


async def test_what_is_asked_of_a_session_that_has_ended_fails_at_once(tail_engine: Engine) -> None:
    async with tail_node(tail_engine) as (url, _, links):
        session = (await links.wait_link(TAIL, url)).add_session(SessionId("s1"))
        await session.wait_opened(opening(plan_to(url)))
        await session.close()
        step = Step(session_id=session.session_id, position=0, token_count=1, wants_token=True)
        with pytest.raises(LinkError, match="closed"):
            await session.send_step(step, memoryview(bytes(tail_engine.hidden_size * 4)))


async def test_all_who_wait_for_a_dead_neighbour_fail_together(tail_engine: Engine) -> None:
    """The neighbour takes connections and never answers; the second waiter has the first one's outcome."""
    async with tail_node(tail_engine) as (_, http, _), asyncio.TaskGroup() as tasks:
        with bind("127.0.0.1", 0) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            pool = LinkPool(http, tasks, LinkIdentity(greeting_of(HEAD, tail_engine)), connect_timeout_s=0.3)
            began = asyncio.get_running_loop().time()
            outcomes = await asyncio.gather(*(pool.wait_link(TAIL, url) for _ in range(5)), return_exceptions=True)
            waited_s = asyncio.get_running_loop().time() - began

    assert all(isinstance(outcome, LinkError) for outcome in outcomes)
    assert waited_s < 1.0


async def test_a_neighbour_that_has_another_name_now_is_not_taken_for_the_old_one(tail_engine: Engine) -> None:
    async with asyncio.timeout(10), tail_node(tail_engine) as (url, _, links):
        with pytest.raises(LinkError, match=f"{TAIL} answers at this address"):
            await links.wait_link(NodeId("old.w@17-29"), url)
        assert not (await links.wait_link(TAIL, url)).is_broken


@pytest.mark.parametrize(
    ("difference", "reason"),
    [
        ({"protocol_version": PROTOCOL_VERSION + 1}, "protocol version differs"),
        ({"fingerprint": "another file"}, "weights (fingerprint) differs"),
        ({"hidden_size": 64}, "hidden size differs"),
        ({"dtype": "bfloat16"}, "dtype of hidden states differs"),
    ],
)
async def test_a_neighbour_whose_rows_mean_something_else_is_refused_by_what_differs(
    tail_engine: Engine, difference: dict[str, object], reason: str
) -> None:
    other = msgspec.structs.replace(greeting_of(HEAD, tail_engine), **difference)
    async with tail_node(tail_engine) as (url, http, links), asyncio.TaskGroup() as tasks:
        with pytest.raises(LinkError, match=re.escape(reason)):
            await LinkPool(http, tasks, LinkIdentity(other)).wait_link(TAIL, url)
        assert not (await links.wait_link(TAIL, url)).is_broken


async def test_a_node_turns_away_from_a_neighbour_that_answers_with_other_weights(tail_engine: Engine) -> None:
    mine = greeting_of(HEAD, tail_engine)

    async def answer(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        await socket.send_bytes(encode_frame(msgspec.structs.replace(mine, node_id=TAIL, fingerprint="another file")))
        await socket.receive()
        return socket

    app = web.Application()
    app.router.add_get(LINK_PATH, answer)
    with bind("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with aiohttp.ClientSession() as http, serving(app, listener), asyncio.TaskGroup() as tasks:
            with pytest.raises(LinkError, match="weights"):
                await LinkPool(http, tasks, LinkIdentity(mine)).wait_link(TAIL, url)


@pytest.mark.parametrize("first", ["text", "session", "garbage", "greeted twice"])
async def test_whoever_does_not_greet_first_and_once_is_disconnected_with_a_reason(
    tail_engine: Engine, first: str
) -> None:
    greeting = encode_frame(greeting_of(HEAD, tail_engine))
    async with tail_node(tail_engine) as (url, http, links):
        async with http.ws_connect(url + LINK_PATH) as socket:
            if first == "text":
                await socket.send_str("hello")
            elif first == "session":
                await socket.send_bytes(encode_frame(opening(plan_to(url))))
            elif first == "garbage":
                await socket.send_bytes(b"\xff" * 64)
            else:
                await socket.send_bytes(greeting)
                await socket.receive(timeout=5)
                await socket.send_bytes(greeting)
            message = await socket.receive(timeout=5)
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1002)
            assert message.extra
        assert not (await links.wait_link(TAIL, url)).is_broken


async def test_a_web_page_cannot_open_a_link(tail_engine: Engine) -> None:
    async with tail_node(tail_engine) as (url, http, _):
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await http.ws_connect(url + LINK_PATH, headers={"Origin": "https://page.example"})


async def test_a_neighbour_that_cannot_be_reached_is_named(tail_engine: Engine) -> None:
    async with tail_node(tail_engine) as (_, _, links):
        with pytest.raises(LinkError) as broken:
            await links.wait_link(TAIL, "http://127.0.0.1:9")
    assert broken.value.node_id == TAIL


async def test_a_step_that_fails_ends_its_session_and_no_other(tail_engine: Engine) -> None:
    async with tail_node(tail_engine) as (url, _, links):
        link = await links.wait_link(TAIL, url)
        bad, good = (link.add_session(SessionId(name)) for name in ("bad", "good"))
        for session in (bad, good):
            await session.wait_opened(opening(plan_to(url, session.session_id)))
        row = memoryview(bytes(tail_engine.hidden_size * 4))

        with pytest.raises(RemoteHopError):
            await bad.wait_reply(
                await bad.send_step(Step(session_id=bad.session_id, position=7, token_count=1, wants_token=True), row)
            )
        step = Step(session_id=good.session_id, position=0, token_count=1, wants_token=True)
        assert (await good.wait_reply(await good.send_step(step, row))).token_id is not None


@asynccontextmanager
async def greeted(
    http: aiohttp.ClientSession, url: str, engine: Engine
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A link on which both ends have greeted, and a test says the rest."""
    async with http.ws_connect(url + LINK_PATH) as socket:
        await socket.send_bytes(encode_frame(greeting_of(HEAD, engine)))
        assert isinstance(decode_frame((await socket.receive(timeout=5)).data)[0], Greeting)
        yield socket


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - a look at a count
            await asyncio.sleep(0.01)
