"""Admission: who waits, how long, and who is served next."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from meshnet_node.admission import Admission, SessionRequest
from meshnet_node.engine.thread import Engine
from meshnet_node.errors import EngineClosedError, EntryLayerError, NoFreeSlotError
from meshnet_protocol.ids import SessionId
from meshnet_protocol.layers import LayerRange
from node.engine_helpers import GREEDY, options

LAYERS = LayerRange(28, 29)
LONG_S = 60.0


@pytest.fixture(scope="module")
def engine(model_path: Path, cache_dir: Path) -> Iterator[Engine]:
    """One slot; tests leave it without sessions."""
    built = Engine.load(model_path, LAYERS, options(cache_dir, slots=1, context_tokens=64))
    yield built
    assert built.queue_depth == 0
    built.close()


def admission_of(engine: Engine, *, queue_max: int = 2, timeout_s: float = LONG_S) -> Admission:
    return Admission(engine, queue_max=queue_max, queue_timeout_s=timeout_s, rng=Random(1))


def request(name: str, layers: LayerRange = LAYERS) -> SessionRequest:
    return SessionRequest(SessionId(name), layers, GREEDY)


async def turn() -> None:
    """Lets every task that can run take its step."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_slot_that_comes_free_goes_to_who_waited_longest(engine: Engine) -> None:
    admission = admission_of(engine)
    first = await admission.wait_session(request("first"))
    async with asyncio.TaskGroup() as tasks:
        second = tasks.create_task(admission.wait_session(request("second")))
        await turn()
        third = tasks.create_task(admission.wait_session(request("third")))
        await turn()
        assert (admission.queue_depth, admission.waiting_count) == (3, 2)

        admission.release(first)
        admission.release(await second)
        assert (await third).session_id == "third"
    admission.release(third.result())
    assert admission.queue_depth == 0


async def test_a_newcomer_does_not_overtake_the_queue(engine: Engine) -> None:
    admission = admission_of(engine)
    first = await admission.wait_session(request("first"))
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(admission.wait_session(request("waiting")))
        await turn()
        admission.release(first)  # the slot is the waiting one's from here on
        newcomer = tasks.create_task(admission.wait_session(request("newcomer")))
        await turn()
        assert waiting.done()
        assert not newcomer.done()
        admission.release(waiting.result())
    admission.release(newcomer.result())


async def test_a_full_queue_refuses_at_once(engine: Engine) -> None:
    admission = admission_of(engine, queue_max=1)
    first = await admission.wait_session(request("first"))
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(admission.wait_session(request("waiting")))
        await turn()
        with pytest.raises(NoFreeSlotError, match="all 1 slots are taken and 1 wait"):
            await admission.wait_session(request("too many"))
        admission.release(first)
    admission.release(waiting.result())


@pytest.mark.parametrize(("queue_max", "timeout_s"), [(2, 0.02), (0, LONG_S), (2, 0)])
async def test_patience_ends(engine: Engine, queue_max: int, timeout_s: float) -> None:
    admission = admission_of(engine, queue_max=queue_max, timeout_s=timeout_s)
    first = await admission.wait_session(request("first"))

    with pytest.raises(NoFreeSlotError):
        await admission.wait_session(request("second"))

    assert admission.waiting_count == 0
    admission.release(first)


async def test_who_leaves_the_queue_leaves_no_slot_taken(engine: Engine) -> None:
    """Also in the very moment in which it is served."""
    admission = admission_of(engine)
    first = await admission.wait_session(request("first"))
    leaving = [asyncio.Task(admission.wait_session(request(name))) for name in ("early", "late")]
    await turn()

    leaving[0].cancel()
    await turn()
    admission.release(first)
    leaving[1].cancel()
    await asyncio.wait(leaving)

    assert all(task.cancelled() for task in leaving)
    assert admission.queue_depth == 0


async def test_what_cannot_be_served_at_all_does_not_wait(engine: Engine) -> None:
    with pytest.raises(EntryLayerError):
        await admission_of(engine).wait_session(request("s", LayerRange(29, 29)))


async def test_waiting_ends_when_the_engine_is_closed(model_path: Path, cache_dir: Path) -> None:
    engine = Engine.load(model_path, LAYERS, options(cache_dir, slots=1, context_tokens=64))
    admission = admission_of(engine)
    first = await admission.wait_session(request("first"))
    waiting = asyncio.Task(admission.wait_session(request("second")))
    await turn()

    engine.close()
    admission.release(first)

    with pytest.raises(EngineClosedError):
        await waiting
