"""What the fleet is told, and what it says must follow: two closed unions of words."""

from dataclasses import dataclass

from meshnet_protocol.ids import Incarnation, ModelKey, NodeId
from meshnet_protocol.messages import Heartbeat, Leave, Registration


@dataclass(frozen=True, slots=True)
class NodeRegistered:
    registration: Registration


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class NodeLeft:
    leave: Leave


@dataclass(frozen=True, slots=True)
class NodeSuspected:
    """A connection to the node broke: leave it out until the tracker itself has reached it.

    Heartbeats do not clear it: they show that the node can reach the tracker, and not that it can be reached.
    """

    node_id: NodeId


@dataclass(frozen=True, slots=True)
class NodeProbed:
    """The tracker has called a suspected node itself."""

    node_id: NodeId
    incarnation: Incarnation
    is_well: bool


@dataclass(frozen=True, slots=True)
class NodeFaulted:
    """A chat failed, and by this node."""

    node_id: NodeId


@dataclass(frozen=True, slots=True)
class NodesServed:
    """A chat or a live probe brought a token over these nodes."""

    node_ids: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; who has been silent for too long?"""


FleetEvent = (
    NodeRegistered | HeartbeatReceived | NodeLeft | NodeSuspected | NodeProbed | NodeFaulted | NodesServed | Tick
)


@dataclass(frozen=True, slots=True)
class TopologyChanged:
    """The set of nodes or shards changed: the model's epoch moves on."""

    model_key: ModelKey
    reason: str
    """joined, restarted, shard-change, settled, draining, left or lost."""
    node_id: NodeId


@dataclass(frozen=True, slots=True)
class NodeNoted:
    """Worth telling a person, but no change of topology."""

    model_key: ModelKey
    reason: str
    """suspected, condemned (a probe failed), cleared, recut (its entry layers changed), settling (it flaps); left,
    lost, draining or joined of a node that was no part of the topology."""
    node_id: NodeId


FleetEffect = TopologyChanged | NodeNoted
