"""Hearsay makes a suspect; the tracker's own call decides."""

import asyncio
from typing import Any

import pytest

from meshnet_tracker.testing import FakeHead, RunningTracker, running_head, running_tracker

from .test_proxy import post


async def until(tracker: RunningTracker, node_id: Any, **wanted: bool) -> None:
    async with asyncio.timeout(5):
        while True:
            node = tracker.server.fleet.node(node_id)
            assert node is not None
            if all(getattr(node, name) == value for name, value in wanted.items()):
                return
            await asyncio.sleep(0.005)


def accuse(head: FakeHead, tail_id: Any) -> None:
    head.refusal = (502, {"message": "link broke", "code": "link", "culprit": tail_id, "reporter": ""})


@pytest.mark.parametrize("is_well", [True, False])
async def test_a_suspect_that_answers_is_cleared_and_one_that_does_not_is_condemned(is_well: bool) -> None:
    async with running_tracker() as tracker, running_head() as head, running_head(is_well=is_well) as tail:
        tracker.register("head", "0-21", url=head.url)
        tail_id = tracker.register("tail", "22-39", url=tail.url)
        accuse(head, tail_id)
        async with post(tracker) as response:
            assert response.status == 503
        await until(tracker, tail_id, is_suspected=not is_well, is_condemned=not is_well)

        node = tracker.server.fleet.node(tail_id)
        assert node is not None
        assert tail.probe_count > 0
        assert (node.faults.mass > 0) is not is_well, "a link's fault becomes the node's only by evidence"


async def test_a_condemned_node_is_called_again_until_it_is_well() -> None:
    async with running_tracker() as tracker, running_head(is_well=False) as ill:
        node_id = tracker.register("only", "0-39", url=ill.url)
        ill.breaks_after = 0
        async with post(tracker) as response:
            assert response.status == 503
        await until(tracker, node_id, is_condemned=True)

        ill.is_well, ill.breaks_after = True, None
        await until(tracker, node_id, is_suspected=False)
        async with post(tracker) as response:
            assert response.status == 200
