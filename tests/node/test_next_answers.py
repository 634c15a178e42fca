"""Several answers of one request, drawn one after the other, each with a slot of its own."""

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from meshnet_node.errors import NoFreeSlotError
from meshnet_node.head import HeadChat
from meshnet_node.prompt import Work
from meshnet_protocol.ids import ModelKey, NodeId, SessionId
from meshnet_protocol.messages import HeadRequest, PlannedHop, RoutePlan

ALONE = PlannedHop(node_id=NodeId("a.w@0-29"), url="", start_layer=0, end_layer=29)


class FullHops:
    """Stands for a route whose slots others have taken, and keep."""

    engine: Any = SimpleNamespace(vocabulary=SimpleNamespace(size=100))

    def open_hop_session(self, _request: object) -> NoReturn:
        raise NoFreeSlotError(4)


async def test_an_answer_that_gets_no_slot_says_so_before_the_tracker_takes_the_head_for_dead() -> None:
    plan = RoutePlan(session_id=SessionId("s"), model_key=ModelKey("m@1"), hops=(ALONE,), token_timeout_s=0.2)
    hops: Any = FullHops()
    chat = HeadChat(hops, plan, HeadRequest(n=2), Work(((1,),), "", None), AsyncExitStack(), context_tokens=100)
    answers = chat.stream()
    await anext(answers)  # the chat has begun, and waits for its next answer's slot from here on

    async with asyncio.timeout(10):  # of 60 s that it would wait by itself
        with pytest.raises(NoFreeSlotError):
            await anext(answers)
