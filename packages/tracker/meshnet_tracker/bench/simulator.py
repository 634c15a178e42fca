"""One policy's hour in one world: discrete events in simulated time around the tracker's real modules.

Real are the fleet, the enumeration, the statistics, the router with its reservations, the policy, and the judgement
of failures. Simulated are machines, links, clients and clocks. Requests on a machine share it; whenever its crowd or
its speed changes, everything on it is timed anew. The tracker hears what it would hear in earnest: heartbeats with
queue depths, the end of a request with its hops' timings, a broken connection with the node that broke. What breaks
off goes on elsewhere, as often and as long as the proxy would have it.
"""

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from random import Random

import msgspec

from meshnet_protocol.ids import NodeId
from meshnet_protocol.messages import Heartbeat, ModelCard, Registration
from meshnet_tracker.bench.attempts import Attempt, begin
from meshnet_tracker.bench.contender import Asked, Contender, Record, Tracker
from meshnet_tracker.bench.machines import Machine, Run, best_route
from meshnet_tracker.bench.traffic import Request
from meshnet_tracker.bench.worlds import LAYER_COUNT, Change, NodeSpec, World
from meshnet_tracker.blame import Blame
from meshnet_tracker.errors import AttemptFailedError, NoRouteError
from meshnet_tracker.fleet import (
    Fleet,
    FleetEvent,
    HeartbeatReceived,
    NodeProbed,
    NodeRegistered,
    NodeSuspected,
    Tick,
)
from meshnet_tracker.fleet import TopologyChanged as Changed
from meshnet_tracker.router import RouteDecision, Router
from meshnet_tracker.routing_stats import DecisionMode, RouteStatsStore
from meshnet_tracker.testing import make_card, make_registration
from meshnet_tracker.tries import ATTEMPTS_MAX, FRUITLESS_ATTEMPTS_MAX

HEARTBEAT_PERIOD_S = 2.0
FAIL_FAST_S = 0.05
PROBE_S = 0.1
"""Until the tracker has called a suspected node itself."""
ROUTE_WAIT_S_MAX, ROUTE_LOOK_PERIOD_S = 10.0, 0.5
NEAR_BEST = 1.1
PROMPT_GUESS_ERROR = 0.8

CARD: ModelCard = make_card(name="bench", layer_count=LAYER_COUNT)


class Simulation:
    def __init__(self, world: World, requests: Sequence[Request], contender: Contender, *, seed: int) -> None:
        self._world = world
        self._now = 0.0
        self._clock_offset_s = 0.0
        self._fleet = Fleet(heartbeat_period_s=HEARTBEAT_PERIOD_S)
        stats = RouteStatsStore(contender.config)
        self._stats = stats
        self._blame = Blame()
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
            links=self._blame.links,
        )
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = count()
        self._run_ids = count()
        self._attempts: dict[int, Attempt] = {}
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

    def _send(self, asked: Asked, waited_s: float = 0.0) -> None:
        """A chat that has begun waits for a route to come back, be it the one that broke; others do not."""
        guess = int(asked.request.prompt_tokens * PROMPT_GUESS_ERROR)
        exclude = () if waited_s else asked.failed
        is_last_look = not asked.drawn or waited_s >= ROUTE_WAIT_S_MAX
        try:
            decision = self.router.choose(
                self.model, now=self._clock, exclude=exclude, prompt_tokens=guess, suspects_too=is_last_look
            )
        except NoRouteError:
            if is_last_look:
                self._end(asked, "failed")
            else:
                self._at(self._now + ROUTE_LOOK_PERIOD_S, self._send, asked, waited_s + ROUTE_LOOK_PERIOD_S)
            return
        self._start(asked, decision)

    def _start(self, asked: Asked, decision: RouteDecision) -> None:
        machines = tuple(self._by_id[node_id] for node_id in decision.route.node_ids)
        asked.attempts += 1
        asked.nodes = tuple(machine.spec.name for machine in machines)
        asked.touched.update(asked.nodes)
        if decision.mode is DecisionMode.SCOUT:
            asked.is_scout = True
            self._count_scout(machines)
        attempt = begin(asked, decision, machines, self._now)
        best_s, _ = best_route(
            self._by_id.values(), prompt_tokens=attempt.prompt_tokens, output_tokens=attempt.output_tokens
        )
        asked.excess_s += max(0.0, attempt.plain_s - best_s)
        asked.is_near_best = attempt.plain_s <= NEAR_BEST * best_s
        run, run_id = attempt.run, next(self._run_ids)
        self._attempts[run_id] = attempt
        if attempt.is_refused:
            self._at(self._now + FAIL_FAST_S, self._finish, run_id, run.version)
            return
        for machine in machines:
            machine.runs[run_id] = run
        recrowded = [machine for machine in machines if machine.recrowd()]
        run.price()
        self._at(run.ends_at, self._finish, run_id, run.version)
        for machine in recrowded:
            self._retime(machine, but=run_id)

    def _finish(self, run_id: int, version: int) -> None:
        attempt = self._attempts.get(run_id)
        if attempt is None or attempt.run.version != version:
            return
        self._take_off(run_id, attempt)
        if attempt.failure is not None:
            self._go_on(attempt, attempt.failure)
            return
        if not attempt.leaves and not attempt.asked.drawn:
            # Only what one route ran from start to end is a sample.
            self._observe(attempt)
            self._sampled.update(attempt.asked.nodes)
        self._release(attempt)
        self._end(attempt.asked, "aborted" if attempt.leaves else "completed")

    def _go_on(self, attempt: Attempt, failure: AttemptFailedError) -> None:
        """The attempt broke off: book that to its arm, and hand the chat with what it has drawn to the next route."""
        asked = attempt.asked
        self._note_failure(attempt, failure)
        self._release(attempt)
        if drawn := min(attempt.drawn_tokens, attempt.output_tokens - 1):
            asked.drawn += drawn
            asked.failed.clear()  # as in the proxy: what failed further back may serve again
        asked.failed.append(attempt.decision.signature)
        if len(asked.failed) < FRUITLESS_ATTEMPTS_MAX and asked.attempts < ATTEMPTS_MAX:
            self._send(asked)
        else:
            self._end(asked, "failed")

    def _observe(self, attempt: Attempt) -> None:
        seconds = self._now - attempt.run.started_at
        self.router.observe(
            attempt.decision,
            completion_tokens=attempt.output_tokens,
            seconds=seconds,
            now=self._clock,
            prompt_tokens=attempt.prompt_tokens,
            ttft_s=seconds * attempt.prompt_part_seen,
            timings=attempt.timings(),
        )

    def _break_off(self, run_id: int, culprit: Machine) -> None:
        """A machine went down under an attempt, and the tracker cannot reach it either."""
        attempt = self._attempts[run_id]
        self._take_off(run_id, attempt)
        self._go_on(attempt, AttemptFailedError("gone", culprit=culprit.node_id, wants_probe=True))

    def _note_failure(self, attempt: Attempt, failure: AttemptFailedError) -> None:
        """As the proxy and the tracker's server book it."""
        suspects, events = self._blame.judge(attempt.decision.route, failure, self._clock)
        for event in events:
            self._tell(event)
        self.router.note_failure(attempt.decision, suspects=suspects, is_overload=failure.is_blameless, now=self._clock)

    def _probe(self, node_id: NodeId) -> None:
        machine, node = self._by_id[node_id], self._fleet.node(node_id)
        if node is not None:
            self._tell(NodeProbed(node_id, node.registration.incarnation, machine.is_up))

    def _release(self, attempt: Attempt) -> None:
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

    def _take_off(self, run_id: int, attempt: Attempt) -> None:
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
            elif effect.reason == "suspected":
                self._at(self._now + PROBE_S, self._probe, effect.node_id)
            elif effect.reason == "condemned":
                for follows in self._blame.condemned(effect.node_id):
                    self._tell(follows)

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
