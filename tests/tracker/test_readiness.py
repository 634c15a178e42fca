"""A model is ready when a token came over its nodes; else the tracker goes and sees, now and then, and not for ever."""

import asyncio
import itertools
from typing import Any

import aiohttp

from meshnet_protocol.ids import NodeId
from meshnet_protocol.messages import Leave
from meshnet_tracker.candidates import CandidateCache
from meshnet_tracker.fleet import Fleet, NodeFaulted, NodeLeft, NodeProbed, NodeRegistered, NodesServed, NodeSuspected
from meshnet_tracker.link_faults import LinkFaults
from meshnet_tracker.readiness import PROBE_PERIOD_S_FIRST, PROBE_PERIOD_S_MAX, PROBES_IN_A_ROW_MAX, Readiness
from meshnet_tracker.testing import RunningTracker, make_card, make_registration, running_head, running_tracker

from .test_proxy import finished_chats, post

FIRST = PROBE_PERIOD_S_FIRST


class Mesh:
    """The deciding parts, in pretend time."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.links = LinkFaults()
        self.chats = 0
        self.readiness = Readiness(
            fleet=self.fleet,
            links=self.links,
            candidates=CandidateCache().candidates,
            is_busy=lambda _: self.chats > 0,
        )
        self.now = 0.0

    def join(self, instance: str, layers: str, **fields: Any) -> NodeId:
        registration = make_registration(instance, layers, **fields)
        self.fleet.handle(NodeRegistered(registration), self.now)
        return registration.node_id

    def leave(self, instance: str, incarnation: str = "") -> None:
        gone = make_registration(instance, "0-39", incarnation=incarnation)
        self.tell(NodeLeft(Leave(node_id=gone.node_id, incarnation=gone.incarnation)))

    def tell(self, event: Any) -> None:
        self.fleet.handle(event, self.now)

    @property
    def is_ready(self) -> bool:
        model = self.fleet.model(make_card().model_key)
        return model is not None and self.readiness.is_ready(model, self.now)

    def due(self, after: float = 0.0) -> list[list[str]]:
        """The instances on the routes that are to be probed now."""
        self.now += after
        routes = self.readiness.take_due_probes(self.now)
        return [[node_id.partition(".")[0] for node_id in route.node_ids] for route in routes]

    def probed(self, *, is_well: bool) -> None:
        self.readiness.note_probe(make_card().model_key, is_well=is_well, now=self.now)


def test_a_model_is_probed_as_soon_as_it_can_be_routed_and_once() -> None:
    mesh = Mesh()
    head = mesh.join("head", "0-21")
    assert (mesh.is_ready, mesh.due()) == (False, [])
    tail = mesh.join("tail", "22-39")
    assert mesh.due() == [["head", "tail"]]
    assert mesh.due(after=60) == [], "one probe at a time"
    mesh.tell(NodesServed((head, tail)))
    mesh.probed(is_well=True)
    assert mesh.is_ready
    assert mesh.due(after=1e6) == [], "silence is no reason for doubt"


def test_a_route_that_a_chat_runs_on_is_not_probed_until_it_has_ended() -> None:
    mesh = Mesh()
    mesh.join("whole", "0-39")
    mesh.chats = 1
    assert mesh.due(after=60) == []
    mesh.chats = 0
    assert mesh.due(after=FIRST) == [["whole"]]


def test_a_token_of_a_chat_does_as_well() -> None:
    mesh = Mesh()
    mesh.tell(NodesServed((mesh.join("all", "0-39"),)))
    assert (mesh.is_ready, mesh.due()) == (True, [])


def test_who_fails_must_bring_a_token_before_the_model_is_ready_again() -> None:
    mesh = Mesh()
    node = mesh.join("all", "0-39")
    mesh.tell(NodesServed((node,)))
    assert mesh.due() == []
    mesh.tell(NodeFaulted(node))
    assert not mesh.is_ready
    assert mesh.due() == [], "not in the very moment of the failure"
    assert mesh.due(after=FIRST) == [["all"]]


def test_a_suspect_is_called_first_and_then_it_must_bring_a_token_too() -> None:
    mesh = Mesh()
    node = mesh.join("all", "0-39")
    mesh.tell(NodesServed((node,)))
    mesh.tell(NodeSuspected(node))
    assert (mesh.is_ready, mesh.due(after=60)) == (False, [])
    mesh.tell(NodeProbed(node, make_registration("all", "0-39").incarnation, is_well=True))
    assert not mesh.is_ready
    assert mesh.due(after=FIRST) == [["all"]]


def test_a_twin_that_has_served_keeps_the_model_ready() -> None:
    mesh = Mesh()
    first, second = mesh.join("first", "0-39"), mesh.join("second", "0-39")
    mesh.tell(NodesServed((first, second)))
    mesh.tell(NodeFaulted(first))
    assert (mesh.is_ready, mesh.due(after=60)) == (True, [])


def test_a_probe_goes_where_nothing_has_failed_lately_if_there_is_such_a_way() -> None:
    mesh = Mesh()
    quick = mesh.join("quick", "0-39", layer_tokens_per_s=1e6)
    mesh.join("other", "0-39")
    mesh.tell(NodesServed((quick,)))
    assert mesh.due() == []
    mesh.tell(NodeFaulted(quick))
    assert mesh.due() == []
    assert mesh.due(after=FIRST) == [["other"]]


def test_nodes_that_served_over_other_links_make_no_route_over_a_broken_one_ready() -> None:
    mesh = Mesh()
    head, tail = mesh.join("head", "0-21"), mesh.join("tail", "22-39")
    mesh.tell(NodesServed((head, tail)))
    mesh.links.report(head, tail, mesh.now)
    assert not mesh.is_ready
    mesh.now += 60
    assert mesh.is_ready


def test_probes_that_fail_come_later_and_later_and_end() -> None:
    mesh = Mesh()
    mesh.join("all", "0-39")
    at: list[float] = []
    while mesh.now < 2000:
        if mesh.due():
            at.append(mesh.now)
            mesh.probed(is_well=False)
        mesh.now += 0.5
    waits = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert len(at) == PROBES_IN_A_ROW_MAX
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (PROBE_PERIOD_S_FIRST, PROBE_PERIOD_S_MAX)

    mesh.join("another", "0-39")
    assert mesh.due() != [], "somebody new is worth a look"


def test_nodes_that_come_and_go_bring_no_more_than_a_probe_a_second() -> None:
    mesh = Mesh()
    mesh.join("all", "0-39")
    count = 0
    for step in range(1000):
        mesh.now = step / 100
        mesh.join("flapping", "0-39", incarnation=f"run {step}")
        if mesh.due():
            count += 1
            mesh.probed(is_well=False)
        mesh.leave("flapping", f"run {step}")
    assert 2 <= count <= 11


def test_what_was_known_of_a_model_is_forgotten_with_its_last_node() -> None:
    mesh = Mesh()
    mesh.join("all", "0-39")
    assert mesh.due() == [["all"]]
    mesh.leave("all")
    assert mesh.due() == []
    assert mesh.readiness._doubts == {}
    mesh.probed(is_well=True)


async def until_ready(http: aiohttp.ClientSession, *, is_ready: bool = True) -> None:
    async with asyncio.timeout(10):
        while True:
            async with http.get("/health/ready") as response:
                told = await response.json()
                assert response.status == (200 if told["ready"] else 503)
            if told["ready"] is is_ready:
                return
            await asyncio.sleep(0.01)


async def probes(tracker: RunningTracker, count: int = 1) -> list[dict[str, Any]]:
    """The events of live probes, as soon as there are ``count``."""
    async with asyncio.timeout(10):
        while True:
            found = [event for event in tracker.server.events.read(after=0) if event["event"] == "model probed"]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.01)


async def test_a_head_that_draws_nothing_is_found_out_before_anybody_chats_and_is_ready_when_it_does() -> None:
    async with (
        running_head(ends_after=0) as head,
        running_tracker(probes_models=True) as tracker,
        aiohttp.ClientSession(tracker.url) as http,
    ):
        tracker.register("all", "0-39", url=head.url)
        await probes(tracker)
        await until_ready(http, is_ready=False)
        async with http.get("/v1/models") as response:
            models = (await response.json())["data"]
        async with http.get("/v1/overview") as response:
            overview = (await response.json())["models"]
        head.ends_after = None
        await until_ready(http)
        async with http.get("/v1/models/tiny") as response:
            model = await response.json()
        found = await probes(tracker, len(head.requests))

    assert [(entry["id"], entry["ready"]) for entry in models] == [("tiny", False)]
    assert (overview[0]["is_ready"], model["ready"]) == (False, True)
    assert "no token" in overview[0]["verdict"]
    assert {(request.max_tokens, len(request.messages)) for request in head.requests} == {(1, 1)}
    assert [event["is_well"] for event in found] == [False] * (len(head.requests) - 1) + [True]


async def test_a_model_without_a_chat_template_is_ready_for_text_completions() -> None:
    async with (
        running_head(has_template=False) as head,
        running_tracker(probes_models=True) as tracker,
        aiohttp.ClientSession(tracker.url) as http,
    ):
        tracker.register("all", "0-39", url=head.url)
        (probe,) = await probes(tracker)
        await until_ready(http)

    assert probe["is_well"]
    assert [len(request.prompts) for request in head.requests] == [0, 1]


async def test_a_probe_is_no_chat_no_sample_and_leaves_nothing_behind() -> None:
    async with (
        running_head() as head,
        running_tracker(probes_models=True, route_min_sample_tokens=1) as tracker,
        aiohttp.ClientSession(tracker.url) as http,
    ):
        tracker.register("all", "0-39", url=head.url)
        await until_ready(http)
        (probe,) = await probes(tracker)
        async with http.get("/v1/routing") as response:
            (arm,) = (await response.json())["models"][0]["candidates"]
        async with http.get("/v1/calls") as response:
            calls = (await response.json())["calls"]

    assert (arm["samples"], arm["in_flight"], arm["status"]) == (0, 0, "unsampled")
    assert calls == []
    assert (probe["is_well"], probe["error"]) == (True, None)
    assert len(head.requests) == 1
    assert head.requests[0].meshnet is not None
    assert head.requests[0].meshnet.ticket, "real nodes would run nothing without"


async def test_a_model_in_doubt_is_served_all_the_same_and_a_chat_settles_the_doubt() -> None:
    async with (
        running_head(refusal=(503, {"message": "not yet", "code": "decode"})) as head,
        running_tracker(probes_models=True) as tracker,
        aiohttp.ClientSession(tracker.url) as http,
    ):
        tracker.register("all", "0-39", url=head.url)
        await probes(tracker)
        await until_ready(http, is_ready=False)
        head.refusal = None
        async with post(tracker) as response:
            assert response.status == 200
        await finished_chats(tracker)
        await until_ready(http)


async def test_a_head_that_hangs_is_given_up_by_the_probe_as_by_a_chat() -> None:
    async with running_head() as head, running_tracker(probes_models=True, token_timeout_s=0.1) as tracker:
        head.accepts.clear()
        node_id = tracker.register("all", "0-39", url=head.url)
        first = (await probes(tracker))[0]
        await head.was_left.wait()
        node = tracker.server.fleet.node(node_id)

    assert node is not None
    assert node.faults.mass > 0
    assert (first["is_well"], "no sign of life" in first["error"]) == (False, True)
