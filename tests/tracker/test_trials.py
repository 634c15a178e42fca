"""What has failed is tried by one chat at a time; the others wait for its verdict, and not for long."""

import asyncio
from random import Random
from typing import Any

import pytest

from meshnet_protocol.ids import NodeId
from meshnet_protocol.messages import Leave
from meshnet_tracker import proxy
from meshnet_tracker.errors import NoRouteError, OverloadedError, RouteOnTrialError
from meshnet_tracker.fleet import Fleet, NodeFaulted, NodeLeft, NodeRegistered, NodesServed, NodeSuspected
from meshnet_tracker.link_faults import LinkFaults
from meshnet_tracker.policies.adaptive import AdaptivePolicy
from meshnet_tracker.reputation import COOLDOWN_S_MAX
from meshnet_tracker.router import RouteDecision, Router
from meshnet_tracker.routing_stats import RouteStatsStore, RoutingConfig
from meshnet_tracker.testing import make_registration
from meshnet_tracker.trials import Trials, doubts_of

from .test_pressure import ask_as, until, waiting
from .test_proxy import finished_chats, mesh, post


class Mesh:
    """The deciding parts, in pretend time."""

    def __init__(self, *, is_adaptive: bool = False, **shards: str) -> None:
        self.now = 1.0
        self.fleet, self.links, self.ids = Fleet(), LinkFaults(), dict[str, NodeId]()
        for name, layers in shards.items():
            registration = make_registration(name, layers)
            self.tell(NodeRegistered(registration))
            self.ids[name] = registration.node_id
        config = RoutingConfig()
        self.router = Router(
            fleet=self.fleet,
            stats=RouteStatsStore(config),
            config=config,
            rng=Random(1),
            policy=AdaptivePolicy(config=config) if is_adaptive else None,
            links=self.links,
            trials=Trials(doubts_of(self.fleet, self.links)),
        )

    def tell(self, event: Any) -> None:
        self.fleet.handle(event, self.now)

    def fault(self, *names: str) -> None:
        for name in names:
            self.tell(NodeFaulted(self.ids[name]))

    def serve(self, decision: RouteDecision) -> None:
        self.tell(NodesServed(decision.route.node_ids))
        self.links.note_served(decision.route)

    def choose(self, **how: Any) -> RouteDecision:
        return self.router.choose(self.fleet.models()[0], now=self.now, **how)

    def refuses(self, **how: Any) -> bool:
        try:
            self.router.release(self.choose(**how))
        except RouteOnTrialError:
            return True
        return False


@pytest.mark.parametrize("is_adaptive", [False, True])
def test_the_only_route_is_tried_by_one_chat_at_a_time_after_a_failure(is_adaptive: bool) -> None:
    mesh = Mesh(only="0-39", is_adaptive=is_adaptive)
    mesh.fault("only")

    trial = mesh.choose()
    assert "trial" in trial.reason
    assert mesh.refuses()
    mesh.router.release(trial)
    next_trial = mesh.choose()
    assert mesh.refuses(), "a trial that brought nothing decides nothing"
    mesh.serve(next_trial)
    assert [mesh.choose().route.node_ids for _ in range(3)] == [next_trial.route.node_ids] * 3


def test_a_new_failure_is_a_new_doubt_while_the_old_trial_goes_on() -> None:
    mesh = Mesh(only="0-39")
    mesh.fault("only")
    trial = mesh.choose()
    mesh.serve(trial)
    other = mesh.choose()
    mesh.fault("only")
    mesh.router.release(other)

    assert mesh.refuses()
    mesh.router.release(trial)
    assert not mesh.refuses()


def test_a_doubt_ends_with_the_cooldown() -> None:
    mesh = Mesh(only="0-39")
    mesh.fault("only")
    mesh.choose()
    mesh.now += COOLDOWN_S_MAX

    assert not mesh.refuses()


def test_nobody_waits_where_there_is_another_way() -> None:
    mesh = Mesh(bad="0-39", good="0-39")
    mesh.fault("bad")

    assert {mesh.choose().route.head.node_id for _ in range(5)} == {mesh.ids["good"]}


def test_two_routes_in_doubt_are_two_trials_unless_they_share_what_is_doubted() -> None:
    apart = Mesh(one="0-39", two="0-39")
    apart.fault("one", "two")
    assert len({apart.choose().route.head.node_id for _ in range(2)}) == 2
    assert apart.refuses()

    shared = Mesh(head="0-19", other="0-19", tail="20-39")
    shared.fault("tail")
    shared.choose()
    assert shared.refuses(), "the other head leads to the same tail"


def test_a_suspect_is_tried_by_one_chat_where_only_suspects_are_left() -> None:
    mesh = Mesh(only="0-39")
    mesh.tell(NodeSuspected(mesh.ids["only"]))

    mesh.choose()
    assert mesh.refuses()
    with pytest.raises(NoRouteError):
        mesh.choose(suspects_too=False)


def test_a_link_in_doubt_is_tried_by_one_chat_and_cleared_by_its_token() -> None:
    mesh = Mesh(head="0-19", tail="20-39")
    mesh.links.report(mesh.ids["head"], mesh.ids["tail"], mesh.now)
    trial = mesh.choose()
    assert mesh.refuses()
    mesh.serve(trial)
    assert not mesh.refuses()

    mesh.links.report(mesh.ids["head"], mesh.ids["tail"], mesh.now)
    assert mesh.refuses(), "it broke again, and the trial of before is still out"


def test_a_pinned_route_in_doubt_waits_its_turn_too() -> None:
    mesh = Mesh(only="0-39")
    mesh.fault("only")
    mesh.choose()

    assert mesh.refuses(pinned=[mesh.ids["only"]])


def test_a_live_probe_is_a_trial() -> None:
    mesh = Mesh(only="0-39")
    mesh.fault("only")
    probe = mesh.router.reserve_for_probe(mesh.router.candidates(mesh.fleet.models()[0])[0].route, mesh.now)

    assert mesh.refuses()
    mesh.router.release(probe)
    assert not mesh.refuses()


def test_who_waits_for_a_verdict_is_told_what_clients_know() -> None:
    assert issubclass(RouteOnTrialError, OverloadedError)


async def test_chats_wait_for_the_trial_of_the_only_node_and_follow_it() -> None:
    async with mesh({"breaks_after": 0}) as (tracker, (head,)), asyncio.TaskGroup() as tasks:
        async with post(tracker) as response:
            assert response.status == 503
        head.breaks_after = None
        head.accepts.clear()
        asked = len(head.requests)
        chats = [tasks.create_task(ask_as(tracker, f"client {number}", [])) for number in range(6)]
        await until(lambda: waiting(tracker) == 5 and len(head.requests) > asked)
        assert len(head.requests) == asked + 1
        head.accepts.set()
        assert [await chat for chat in chats] == [200] * 6


async def test_a_trial_that_fails_lets_the_next_one_try_and_each_chat_ends() -> None:
    async with mesh({"breaks_after": 0}) as (tracker, (head,)), asyncio.TaskGroup() as tasks:
        async with post(tracker) as response:
            assert response.status == 503
        head.accepts.clear()
        chats = [tasks.create_task(ask_as(tracker, f"client {number}", [])) for number in range(4)]
        await until(lambda: waiting(tracker) == 3)
        head.accepts.set()
        assert [await chat for chat in chats] == [503] * 4
        await finished_chats(tracker, 5)


async def test_a_trial_that_takes_too_long_costs_the_others_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "PATIENCE_S_MAX", 0.2)
    async with mesh({"breaks_after": 0}) as (tracker, (head,)), asyncio.TaskGroup() as tasks:
        async with post(tracker) as response:
            assert response.status == 503
        head.breaks_after = None
        head.accepts.clear()
        trial = tasks.create_task(ask_as(tracker, "first", []))
        await until(lambda: tracker.server.router.in_flight_total == 1)
        async with asyncio.timeout(2), post(tracker) as response:
            assert (response.status, response.headers["retry-after"]) == (503, "1")
            assert (await response.json())["error"]["code"] == "overloaded"
        head.accepts.set()
        assert await trial == 200


async def test_a_node_that_joins_ends_the_wait_for_a_verdict() -> None:
    async with mesh({"breaks_after": 0}, {}) as (tracker, (bad, good)), asyncio.TaskGroup() as tasks:
        for node in [node for node in tracker.server.fleet.nodes() if node.registration.url == good.url]:
            tracker.server.handle(NodeLeft(Leave(node_id=node.node_id, incarnation=node.registration.incarnation)))
        async with post(tracker) as response:
            assert response.status == 503
        bad.breaks_after = None
        bad.accepts.clear()
        chats = [tasks.create_task(ask_as(tracker, f"client {number}", [])) for number in range(5)]
        await until(lambda: waiting(tracker) == 4)
        tracker.register("late", "0-39", url=good.url)
        async with asyncio.timeout(0.5):
            done, _ = await asyncio.wait(chats, return_when=asyncio.FIRST_COMPLETED)
            while len(done) < 4:
                done, _ = await asyncio.wait(chats, timeout=0.01)
        bad.accepts.set()
