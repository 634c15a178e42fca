"""One policy's hour in one world: discrete events in simulated time around the tracker's real modules.

Real are the fleet, the enumeration, the statistics, the router with its reservations, and the policy.
Simulated are machines, links, clients and clocks. Requests on a machine share it; whenever its crowd or its
speed changes, everything on it is timed anew. The tracker hears what it would hear in earnest: heartbeats
with queue depths, the end of a request with its hops' timings, a broken connection with the node that broke.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from random import Random

import msgspec

from meshnet_protocol.ids import NodeId
from meshnet_protocol.messages import Heartbeat, HopTiming, ModelCard, Registration
from meshnet_tracker.bench.contender import Asked, Contender, Record, Tracker
from meshnet_tracker.bench.machines import Machine, Run, best_route
from meshnet_tracker.bench.traffic import Request
from meshnet_tracker.bench.worlds import LAYER_COUNT, Change, NodeSpec, World
from meshnet_tracker.errors import NoRouteError
from meshnet_tracker.fleet import (
    Fleet,
    FleetEvent,
    HeartbeatReceived,
    NodeFaulted,
    NodeRegistered,
    NodeSuspected,
    Tick,
)
from meshnet_tracker.fleet import TopologyChanged as Changed
from meshnet_tracker.router import RouteDecision, Router
from meshnet_tracker.routing_stats import DecisionMode, RouteStatsStore
from meshnet_tracker.testing import make_card, make_registration

HEARTBEAT_PERIOD_S = 2.0
FAIL_FAST_S = 0.05
TRUNCATED_SHARE = 0.2
ATTEMPTS_MAX = 3
SESSIONS_MAX = 48
"""A machine with so many refuses more."""
REFUSALS = {"fail-fast", "full"}
NEAR_BEST = 1.1
PROMPT_GUESS_ERROR = 0.8


@dataclass(slots=True)
class _Attempt:
    asked: Asked
    decision: RouteDecision
    run: Run
    ending: str
    suspects: tuple[Machine, ...] = ()
    """Who makes it end badly, as far as the tracker is told; empty if the route was merely full.

    A head that ends its stream too early, or a hop that refuses, is named. A hop further down that cuts a stream off
    does so by its link, and then the hop before it may as well have done it.
    """


CARD: ModelCard = make_card(name="bench", layer_count=LAYER_COUNT)


class Simulation:
    def __init__(self, world: World, requests: Sequence[Request], contender: Contender, *, seed: int) -> None:
        self._world = world
        self._now = 0.0
        self._clock_offset_s = 0.0
        self._fleet = Fleet(heartbeat_period_s=HEARTBEAT_PERIOD_S)
        stats = RouteStatsStore(contender.config)
        self._stats = stats
        self._machines: dict[str, Machine] = {}
        self._by_id: dict[NodeId, Machine] = {}
        per_s = len(requests) / requests[-1].at_s if requests and requests[-1].at_s else 0.0
        policy = contender.make(Tracker(stats, contender.config, self._by_id, per_s))
        self.router = Router(
            fleet=self._fleet,
            stats=stats,
            config=contender.config,
            rng=Random(f"{seed} routes"),
            enumerate_routes=contender.enumerate_routes() if contender.enumerate_routes else None,
            policy=policy,
        )
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = count()
        self._run_ids = count()
        self._attempts: dict[int, _Attempt] = {}
        self._scouts_on: dict[str, int] = {}
        self._scouts_max = 0
        self._sampled: set[str] = set()
        for spec in world.nodes:
            self._join(spec)
        model = self._fleet.model(CARD.model_key)
        assert model is not None
        self.model = model
        self._asked = [Asked(request) for request in requests]

    def run(self, duration_s: float) -> Record:
        for asked in self._asked:
            self._at(asked.request.at_s, self._send, asked)
        for change in self._world.changes:
            self._at(change.at_s, self._change, change)
        self._at(HEARTBEAT_PERIOD_S, self._beat)
        while self._events:
            at_s, _, act, args = heapq.heappop(self._events)
            if at_s > duration_s:
                break
            self._now = at_s
            act(*args)
        return Record(self._asked, self._scouts_max, self.router, self.model)

    def pass_time(self, seconds: float) -> float:
        """Without events; the time that it is then."""
        self._now += seconds
        return self._now

    def restart(self, rng: Random) -> None:
        """Another process takes the place of some machine's."""
        self._join(rng.choice(list(self._machines.values())).spec)

    @property
    def _clock(self) -> float:
        """The time as the tracker reads it."""
        return self._now + self._clock_offset_s

    def _at(self, at_s: float, act: Callable[..., None], *args: object) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), act, args))

    # What clients and tracker do.

    def _send(self, asked: Asked) -> None:
        request = asked.request
        guess = int(request.prompt_tokens * PROMPT_GUESS_ERROR)
        try:
            decision = self.router.choose(self.model, now=self._clock, exclude=asked.failed, prompt_tokens=guess)
        except NoRouteError:
            self._end(asked, "failed")
            return
        asked.attempts += 1
        machines = tuple(self._by_id[node_id] for node_id in decision.route.node_ids)
        asked.nodes = tuple(machine.spec.name for machine in machines)
        asked.touched.update(asked.nodes)
        is_scout = decision.mode is DecisionMode.SCOUT
        asked.is_scout = asked.is_scout or is_scout
        if is_scout:
            self._count_scout(machines)
        best_s, _ = best_route(
            self._by_id.values(), prompt_tokens=request.prompt_tokens, output_tokens=request.output_tokens
        )
        self._start(asked, decision, machines, best_s)

    def _start(self, asked: Asked, decision: RouteDecision, machines: tuple[Machine, ...], best_s: float) -> None:
        request = asked.request
        steps = request.output_tokens + 1
        run = Run(
            machines=machines,
            amounts=tuple(
                hop.layers.layer_count
                * (request.output_tokens + machine.spec.prompt_share * request.prompt_tokens)
                * request.noises[place % len(request.noises)]
                for place, (hop, machine) in enumerate(zip(decision.route.hops, machines, strict=True))
            ),
            links_s=(
                *((here.spec.access_s + there.spec.access_s) * steps for here, there in pairwise(machines)),
                0.0,
            ),
            goal=1.0,
            started_at=self._now,
            timed_at=self._now,
            spent_s=[0.0] * len(machines),
        )
        plain_s = sum(
            machine.work_s(hop.layers.layer_count, request.prompt_tokens, request.output_tokens)
            for hop, machine in zip(decision.route.hops, machines, strict=True)
        ) + sum(run.links_s)
        asked.excess_s += max(0.0, plain_s - best_s)
        asked.is_near_best = plain_s <= NEAR_BEST * best_s
        run_id = next(self._run_ids)
        is_full = any(len(machine.runs) >= SESSIONS_MAX for machine in machines)
        attempt = _Attempt(asked, decision, run, "full") if is_full else self._fate(asked, decision, run)
        self._attempts[run_id] = attempt
        if attempt.ending in REFUSALS:
            self._at(self._now + FAIL_FAST_S, self._finish, run_id, run.version)
            return
        for machine in machines:
            machine.runs[run_id] = run
        recrowded = [machine for machine in machines if machine.recrowd()]
        run.price()
        self._at(run.ends_at, self._finish, run_id, run.version)
        for machine in recrowded:
            self._retime(machine, but=run_id)

    def _fate(self, asked: Asked, decision: RouteDecision, run: Run) -> _Attempt:
        """How this attempt will end if nothing comes between."""
        request = asked.request
        refuser = next((machine for machine in run.machines if machine.fails_fast), None)
        if refuser is not None:
            return _Attempt(asked, decision, run, "fail-fast", (refuser,))
        cutter = next((m for m in run.machines if m.truncates), None) if request.fault_draw < TRUNCATED_SHARE else None
        if request.aborts_at is not None and not (cutter is not None and request.cut_at < request.aborts_at):
            run.goal = request.aborts_at
            return _Attempt(asked, decision, run, "aborted")
        if cutter is not None:
            run.goal = request.cut_at
            place = run.machines.index(cutter)
            return _Attempt(asked, decision, run, "truncated", run.machines[max(0, place - 1) : place + 1])
        return _Attempt(asked, decision, run, "completed")

    def _finish(self, run_id: int, version: int) -> None:
        attempt = self._attempts.get(run_id)
        if attempt is None or attempt.run.version != version:
            return
        self._take_off(run_id, attempt)
        asked, decision = attempt.asked, attempt.decision
        match attempt.ending:
            case "completed":
                self._observe(attempt)
                self._sampled.update(asked.nodes)
            case "truncated" | "fail-fast" | "full":
                self._note_failure(attempt, attempt.suspects)
        self._release(attempt)
        if attempt.ending in REFUSALS and asked.attempts < ATTEMPTS_MAX:
            asked.failed.add(decision.signature)
            self._send(asked)
            return
        self._end(asked, attempt.ending if attempt.ending in ("completed", "aborted") else "failed")

    def _observe(self, attempt: _Attempt) -> None:
        run, request = attempt.run, attempt.asked.request
        seconds = self._now - run.started_at
        prompt_work = sum(
            m.spec.prompt_share * request.prompt_tokens * part_s
            for m, part_s in zip(run.machines, run.spent_s, strict=True)
        )
        all_work = sum(
            (m.spec.prompt_share * request.prompt_tokens + request.output_tokens) * part_s
            for m, part_s in zip(run.machines, run.spent_s, strict=True)
        )
        self.router.observe(
            attempt.decision,
            completion_tokens=request.output_tokens,
            seconds=seconds,
            now=self._clock,
            prompt_tokens=request.prompt_tokens,
            ttft_s=seconds * prompt_work / all_work if all_work else None,
            timings=[
                HopTiming(
                    node_id=machine.node_id,
                    steps=request.output_tokens + 1,
                    compute_s=spent_s,
                    link_s=link_s,
                )
                for machine, spent_s, link_s in zip(run.machines, run.spent_s, run.links_s, strict=True)
            ],
        )

    def _break_off(self, run_id: int, culprit: Machine) -> None:
        """A machine went down under an attempt: the next route if the client saw nothing yet, else its failure."""
        attempt = self._attempts[run_id]
        self._take_off(run_id, attempt)
        self._note_failure(attempt, (culprit,))
        self._release(attempt)
        request = attempt.asked.request
        prompt = 0.12 * request.prompt_tokens
        is_unseen = attempt.run.done < prompt / (prompt + request.output_tokens)
        if is_unseen and attempt.asked.attempts < ATTEMPTS_MAX:
            attempt.asked.failed.add(attempt.decision.signature)
            self._send(attempt.asked)
        else:
            self._end(attempt.asked, "failed")

    def _note_failure(self, attempt: _Attempt, suspects: Sequence[Machine]) -> None:
        """As the proxy books it."""
        named = [machine.node_id for machine in suspects]
        self.router.note_failure(attempt.decision, suspects=named, is_overload=not named, now=self._clock)
        if len(named) == 1:
            self._tell(NodeFaulted(named[0]))

    def _release(self, attempt: _Attempt) -> None:
        self.router.release(attempt.decision, self._clock)
        if attempt.decision.mode is DecisionMode.SCOUT:
            for machine in attempt.run.machines:
                self._scouts_on[machine.spec.name] = self._scouts_on.get(machine.spec.name, 1) - 1

    def _end(self, asked: Asked, outcome: str) -> None:
        asked.outcome = outcome
        asked.seconds = self._now - asked.request.at_s

    def _count_scout(self, machines: tuple[Machine, ...]) -> None:
        for machine in machines:
            name = machine.spec.name
            self._scouts_on[name] = self._scouts_on.get(name, 0) + 1
            if name not in self._sampled:
                self._scouts_max = max(self._scouts_max, self._scouts_on[name])

    # What machines do.

    def _take_off(self, run_id: int, attempt: _Attempt) -> None:
        attempt.run.advance(self._now)
        del self._attempts[run_id]
        for machine in attempt.run.machines:
            machine.runs.pop(run_id, None)
        for machine in attempt.run.machines:
            if machine.recrowd():
                self._retime(machine)

    def _retime(self, machine: Machine, *, but: int = -1) -> None:
        for run_id, run in machine.runs.items():
            if run_id != but:
                self._retime_one(run_id, run)

    def _retime_one(self, run_id: int, run: Run) -> None:
        run.advance(self._now)
        run.price()
        self._at(run.ends_at, self._finish, run_id, run.version)

    def _beat(self) -> None:
        for machine in self._machines.values():
            if machine.is_up:
                node = self._fleet.node(machine.node_id)
                if node is not None:
                    beat = Heartbeat(
                        node_id=machine.node_id,
                        incarnation=node.registration.incarnation,
                        queue_depth=len(machine.runs),
                        entry_layers=node.registration.entry_layers,
                    )
                    self._tell(HeartbeatReceived(beat))
        self._tell(Tick())
        self.router.prune(self._clock)
        self._at(self._now + HEARTBEAT_PERIOD_S, self._beat)

    def _tell(self, event: FleetEvent) -> None:
        for effect in self._fleet.handle(event, self._now):
            if isinstance(effect, Changed):
                self._stats.bump_epoch(effect.model_key)

    def _join(self, spec: NodeSpec) -> None:
        machine = self._machines.get(spec.name)
        starts = 0 if machine is None else machine.starts + 1
        registration = _registration(spec, starts)
        if machine is None:
            machine = Machine(spec, registration.node_id, spec.layer_s)
            self._machines[spec.name] = self._by_id[registration.node_id] = machine
        machine.is_up, machine.starts = True, starts
        self._tell(NodeRegistered(registration))

    def _go_down(self, machine: Machine) -> None:
        machine.is_up = False
        self._tell(NodeSuspected(machine.node_id))
        for run_id in list(machine.runs):
            if run_id in self._attempts:
                self._break_off(run_id, machine)

    def _change(self, change: Change) -> None:
        if change.kind == "clock":
            self._clock_offset_s += change.factor
            return
        if change.kind == "join":
            assert change.spec is not None
            self._join(change.spec)
            return
        machine = self._machines[change.node]
        match change.kind:
            case "slow":
                machine.layer_s = machine.spec.layer_s * change.factor
                self._retime(machine)
            case "leave" | "down":
                self._go_down(machine)
            case "up":
                self._join(machine.spec)
            case "fail-fast":
                machine.fails_fast = True
            case "truncate":
                machine.truncates = True


def _registration(spec: NodeSpec, starts: int) -> Registration:
    registration = make_registration(
        spec.name,
        f"{spec.first}-{spec.last}",
        model=CARD,
        layer_tokens_per_s=spec.advertised_layer_tps,
        entry_layers=spec.entry_layers,
        incarnation=f"run {starts} of {spec.name}",
    )
    return msgspec.structs.replace(registration, slots=spec.cap)
