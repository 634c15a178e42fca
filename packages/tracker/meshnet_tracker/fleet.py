"""Who is in the mesh, who is alive, and who holds which layers of which model.

One way in: ``Fleet.handle(event, now)`` takes what nodes say, what the proxy suffered and the passing
of time, and answers with effects for the caller to carry out. A node's life:

    registered ──> ready <──probed, well── suspected ──┐
                    │  └──connection broke──^       │
                    ├──drains──> draining ──────────┼──leaves──> departed (remembered for an hour)
                    └──misses 3 heartbeats──────────┘

A machine that has come and gone too often is *settling* when it comes back: known, and no part of the topology until
it has stayed for a while (``flapping.py``).

Two counters per model let readers cache: ``structure_version`` moves with anything that decides which
routes are possible, ``load_version`` also with queue depths. Neither is the topology *epoch*: that one
belongs to the statistics and moves on ``TopologyChanged`` only, once per arrival and once per departure
(a node that drains has departed already, as far as routes are concerned).
"""

from collections.abc import Iterator
from typing import assert_never

from meshnet_protocol.ids import Incarnation, ModelKey, NodeId
from meshnet_protocol.messages import Heartbeat, Registration
from meshnet_tracker.errors import RegistrationConflictError
from meshnet_tracker.flapping import Flapping
from meshnet_tracker.fleet_events import (
    FleetEffect,
    FleetEvent,
    HeartbeatReceived,
    NodeFaulted,
    NodeLeft,
    NodeNoted,
    NodeProbed,
    NodeRegistered,
    NodesServed,
    NodeSuspected,
    Tick,
    TopologyChanged,
)
from meshnet_tracker.fleet_members import FleetNode, Machine, ServedModel
from meshnet_tracker.memory import BoundedMemory
from meshnet_tracker.registration import check_registration
from meshnet_tracker.reputation import FaultRecord

__all__ = [
    "Fleet",
    "FleetEffect",
    "FleetEvent",
    "FleetNode",
    "HeartbeatReceived",
    "NodeFaulted",
    "NodeLeft",
    "NodeNoted",
    "NodeProbed",
    "NodeRegistered",
    "NodeSuspected",
    "NodesServed",
    "ServedModel",
    "Tick",
    "TopologyChanged",
]

MISSED_HEARTBEATS_MAX = 3
ENTRY_LAYERS_MAX = 4
QUEUE_DEPTH_MAX = 1_000_000
DEPARTED_MEMORY_S = 3600.0
DEPARTED_MAX = 10_000


class Fleet:
    """Every live node of every model. Times are seconds of one monotonic clock, handed in.

    ``believes_newcomers``: that they can serve, as they say; otherwise a token must come over them first.
    """

    def __init__(self, *, heartbeat_period_s: float = 1.0, believes_newcomers: bool = False) -> None:
        self._believes_newcomers = believes_newcomers
        self._silence_s_max = heartbeat_period_s * MISSED_HEARTBEATS_MAX
        self._nodes: dict[NodeId, FleetNode] = {}
        self._machines: dict[Machine, NodeId] = {}
        self._flapping: Flapping[Machine] = Flapping()
        self._models: dict[ModelKey, ServedModel] = {}
        self._departed: BoundedMemory[NodeId] = BoundedMemory(keep_s=DEPARTED_MEMORY_S, count_max=DEPARTED_MAX)
        self._superseded: BoundedMemory[Incarnation] = BoundedMemory(keep_s=DEPARTED_MEMORY_S, count_max=DEPARTED_MAX)
        self._ticked_at: float | None = None

    def handle(self, event: FleetEvent, now: float) -> list[FleetEffect]:
        """Take one event in. Raises RegistrationRefusedError, and changes nothing, if a registration cannot stand."""
        match event:
            case NodeRegistered(registration):
                return self._register(registration, now)
            case HeartbeatReceived(heartbeat):
                return self._hear(heartbeat, now)
            case NodeLeft(leave):
                if self.is_known(leave.node_id, leave.incarnation):
                    return [self._remove(self._nodes[leave.node_id], "left", now)]
                return []
            case NodeSuspected(node_id):
                return self._suspect(node_id)
            case NodeProbed(node_id, incarnation, is_well):
                return self._judge(node_id, incarnation, is_well)
            case NodeFaulted(node_id):
                return self._fault(node_id, now)
            case NodesServed(node_ids):
                return self._note_served(node_ids)
            case Tick():
                return self._tick(now)
            case _:
                assert_never(event)

    def is_known(self, node_id: NodeId, incarnation: Incarnation) -> bool:
        node = self._nodes.get(node_id)
        return node is not None and node.registration.incarnation == incarnation

    def node(self, node_id: NodeId) -> FleetNode | None:
        return self._nodes.get(node_id)

    def has_departed(self, node_id: NodeId) -> bool:
        """Was here within the last hour, and is not now."""
        return node_id in self._departed

    def nodes(self) -> Iterator[FleetNode]:
        return iter(self._nodes.values())

    def model(self, model_key: ModelKey) -> ServedModel | None:
        return self._models.get(model_key)

    def models(self) -> list[ServedModel]:
        """Every model a node has served, those without a live node included, in the order they first came."""
        return list(self._models.values())

    def wanted_entry_layers(self, node_id: NodeId) -> tuple[int, ...]:
        """Where routes would like to enter this node: right behind the ends of other nodes' shards.

        At most ``ENTRY_LAYERS_MAX``, the most frequent ones, in rising order: every cut costs the node a little.
        """
        node = self._nodes.get(node_id)
        if node is None:
            return ()
        ends = self._models[node.model_key].shard_ends
        inside = [(-count, end + 1) for end, count in ends.items() if node.shard.first < end + 1 <= node.shard.last]
        return tuple(sorted(layer for _, layer in sorted(inside)[:ENTRY_LAYERS_MAX]))

    def _register(self, registration: Registration, now: float) -> list[FleetEffect]:
        check_registration(registration)
        self._check_against_others(registration)
        effects: list[FleetEffect] = []
        machine = (registration.wallet, registration.instance)
        reason = "joined"
        known = self._nodes.get(self._machines.get(machine, registration.node_id))
        if known is not None:
            is_same_arm = (known.node_id, known.model_key) == (registration.node_id, registration.model.model_key)
            is_same_process = known.registration.incarnation == registration.incarnation
            if is_same_arm and is_same_process and not known.is_draining:
                return self._register_again(known, registration, now)
            reason = "restarted" if is_same_arm else "shard-change"
            removal = self._remove(known, reason, now)
            if not is_same_arm:
                effects.append(removal)
            if not is_same_process:
                self._superseded.add(known.registration.incarnation, now)
        effects.append(self._add(registration, reason, now))
        return effects

    def _check_against_others(self, registration: Registration) -> None:
        model = self._models.get(registration.model.model_key)
        if model is not None and model.nodes and model.card != registration.model:
            raise RegistrationConflictError(
                f"model {model.model_key} is known as {model.card}, the node describes it as {registration.model}"
            )
        holder = self._nodes.get(registration.node_id)
        if holder is not None and holder.registration.wallet != registration.wallet:
            raise RegistrationConflictError(
                f"node id {registration.node_id} belongs to another wallet: rename the instance"
            )
        if registration.incarnation in self._superseded:
            raise RegistrationConflictError(
                f"a newer process has registered as instance {registration.instance!r} of this wallet: "
                "stop one of the two, or give it another instance name"
            )

    def _add(self, registration: Registration, reason: str, now: float) -> FleetEffect:
        node = FleetNode(
            node_id=registration.node_id,
            registration=registration,
            shard=registration.shard.to_range(),
            entry_layers=frozenset(registration.entry_layers),
            heard_at=now,
            has_served=self._believes_newcomers,
        )
        node.is_settling = self._flapping.must_settle(node.machine, now)
        model = self._models.setdefault(node.model_key, ServedModel(registration.model))
        model.card = registration.model
        model.nodes[node.node_id] = self._nodes[node.node_id] = node
        model.shard_ends[node.shard.last] += 1
        model.mark_structure_changed()
        self._machines[node.machine] = node.node_id
        self._departed.discard(node.node_id)
        if node.is_settling:
            return NodeNoted(node.model_key, "settling", node.node_id)
        return TopologyChanged(node.model_key, reason, node.node_id)

    def _remove(self, node: FleetNode, reason: str, now: float) -> FleetEffect:
        model = self._models[node.model_key]
        del self._nodes[node.node_id], model.nodes[node.node_id]
        del self._machines[node.machine]
        self._flapping.note_departure(node.machine, now)
        self._departed.add(node.node_id, now)
        model.emptied_at = now
        model.mark_structure_changed()
        if node.is_draining:
            return NodeNoted(node.model_key, reason, node.node_id)
        self._forget_shard_end(node)
        if node.is_settling:
            return NodeNoted(node.model_key, reason, node.node_id)
        return TopologyChanged(node.model_key, reason, node.node_id)

    def _register_again(self, node: FleetNode, registration: Registration, now: float) -> list[FleetEffect]:
        """The same process once more, because the reply got lost or its account of itself changed."""
        node.heard_at = now
        if node.registration != registration:
            node.registration = registration
            self._models[node.model_key].mark_structure_changed()
        return self._take_entry_layers(node, registration.entry_layers)

    def _hear(self, heartbeat: Heartbeat, now: float) -> list[FleetEffect]:
        if not self.is_known(heartbeat.node_id, heartbeat.incarnation):
            return []
        node = self._nodes[heartbeat.node_id]
        node.heard_at = now
        node.heartbeat = heartbeat
        self._take_load(node, heartbeat.queue_depth)
        effects = self._take_entry_layers(node, heartbeat.entry_layers)
        if heartbeat.is_draining != node.is_draining:
            effects.append(self._set_draining(node, heartbeat.is_draining))
        return effects

    def _take_load(self, node: FleetNode, queue_depth: int) -> None:
        depth = min(max(0, queue_depth), QUEUE_DEPTH_MAX)
        if depth != node.queue_depth:
            node.queue_depth = depth
            self._models[node.model_key].load_version += 1

    def _take_entry_layers(self, node: FleetNode, entry_layers: tuple[int, ...]) -> list[FleetEffect]:
        reported = frozenset(layer for layer in entry_layers if node.shard.first <= layer <= node.shard.last)
        if reported == node.entry_layers:
            return []
        node.entry_layers = reported
        self._models[node.model_key].mark_structure_changed()
        return [NodeNoted(node.model_key, "recut", node.node_id)]

    def _set_draining(self, node: FleetNode, is_draining: bool) -> FleetEffect:
        model = self._models[node.model_key]
        node.is_draining = is_draining
        if is_draining:
            self._forget_shard_end(node)
        else:
            model.shard_ends[node.shard.last] += 1
        model.mark_structure_changed()
        reason = "draining" if is_draining else "joined"
        if node.is_settling:
            return NodeNoted(node.model_key, reason, node.node_id)
        return TopologyChanged(node.model_key, reason, node.node_id)

    def _forget_shard_end(self, node: FleetNode) -> None:
        ends = self._models[node.model_key].shard_ends
        ends[node.shard.last] -= 1
        if not ends[node.shard.last]:
            del ends[node.shard.last]

    def _suspect(self, node_id: NodeId) -> list[FleetEffect]:
        node = self._nodes.get(node_id)
        if node is None or node.is_suspected:
            return []
        node.is_suspected = True
        node.has_served = False
        self._models[node.model_key].mark_structure_changed()
        return [NodeNoted(node.model_key, "suspected", node_id)]

    def _judge(self, node_id: NodeId, incarnation: Incarnation, is_well: bool) -> list[FleetEffect]:
        if not self.is_known(node_id, incarnation) or not self._nodes[node_id].is_suspected:
            return []
        node = self._nodes[node_id]
        if is_well:
            return self._clear_suspicion(node)
        if node.is_condemned:
            return []
        node.is_condemned = True
        return [NodeNoted(node.model_key, "condemned", node_id)]

    def _fault(self, node_id: NodeId, now: float) -> list[FleetEffect]:
        if (node := self._nodes.get(node_id)) is not None:
            self._set_faults(node, node.faults.with_fault(now))
            node.has_served = False
        return []

    def _note_served(self, node_ids: tuple[NodeId, ...]) -> list[FleetEffect]:
        for node_id in node_ids:
            if (node := self._nodes.get(node_id)) is not None:
                node.has_served = True
        return []

    def _set_faults(self, node: FleetNode, faults: FaultRecord) -> None:
        node.faults = faults
        self._models[node.model_key].load_version += 1

    def _clear_suspicion(self, node: FleetNode) -> list[FleetEffect]:
        if not node.is_suspected:
            return []
        node.is_suspected = node.is_condemned = False
        self._models[node.model_key].mark_structure_changed()
        return [NodeNoted(node.model_key, "cleared", node.node_id)]

    def _tick(self, now: float) -> list[FleetEffect]:
        """Drop the silent. If the tracker itself slept (a closed laptop), that was no silence of the nodes."""
        slept_s = 0.0 if self._ticked_at is None else now - self._ticked_at
        self._ticked_at = now
        if slept_s >= self._silence_s_max:
            for node in self._nodes.values():
                node.heard_at = now
        self._departed.forget_old(now)
        self._superseded.forget_old(now)
        self._forget_models(now)
        for node in self._nodes.values():
            if node.faults.mass:
                self._set_faults(node, node.faults.seen(now))
        self._flapping.forget_old(now)
        settled = [
            self._settle(node)
            for node in self._nodes.values()
            if node.is_settling and self._flapping.has_settled(node.machine, now)
        ]
        silent = [node for node in self._nodes.values() if now - node.heard_at > self._silence_s_max]
        return [*settled, *(self._remove(node, "lost", now) for node in silent)]

    def _settle(self, node: FleetNode) -> FleetEffect:
        node.is_settling = False
        self._models[node.model_key].mark_structure_changed()
        return TopologyChanged(node.model_key, "settled", node.node_id)

    def _forget_models(self, now: float) -> None:
        forgotten = [
            key for key, model in self._models.items() if not model.nodes and now - model.emptied_at > DEPARTED_MEMORY_S
        ]
        for key in forgotten:
            del self._models[key]
