"""What the fleet knows of each node and of each model. Readers look; only the fleet writes."""

from collections import Counter
from dataclasses import dataclass, field

from meshnet_protocol.ids import ModelKey, NodeId, WalletId
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import Heartbeat, ModelCard, Registration
from meshnet_tracker.reputation import NO_FAULTS, FaultRecord

Machine = tuple[WalletId, str]
"""Wallet and instance: what stays when a node comes back with other layers."""


@dataclass(slots=True)
class FleetNode:
    """One live node."""

    node_id: NodeId
    registration: Registration
    shard: LayerRange
    entry_layers: frozenset[int]
    heard_at: float
    queue_depth: int = 0
    heartbeat: Heartbeat | None = None
    """The latest: what in it needs no believing, only showing."""
    is_draining: bool = False
    is_suspected: bool = False
    is_condemned: bool = False
    """Suspected, and the tracker's own probe has failed."""
    is_settling: bool = False
    """It came and went too often; its epoch has not moved yet."""
    has_served: bool = False
    """A token came over it since it joined, or last gave reason for doubt."""
    faults: FaultRecord = NO_FAULTS

    @property
    def model_key(self) -> ModelKey:
        return self.registration.model.model_key

    @property
    def reputation(self) -> float:
        """From 0 to 1; a factor on the node's prior. As of the last tick."""
        return self.faults.reputation

    @property
    def is_ready(self) -> bool:
        """New requests may run on it."""
        return not (self.is_draining or self.is_suspected or self.is_settling)

    def is_in_doubt(self, now: float) -> bool:
        """It failed lately, or somebody could not reach it, and no token came over it since."""
        return not self.has_served and (self.is_suspected or self.faults.is_cooling(now))

    @property
    def hindrance(self) -> str:
        """Why it is not ready, to be told to who insists on it."""
        if self.is_draining:
            return "draining"
        return "not answering" if self.is_suspected else "settling: it has come and gone too often lately"

    @property
    def machine(self) -> Machine:
        return self.registration.wallet, self.registration.instance

    @property
    def layer_tokens_per_s(self) -> float:
        return self.registration.layer_tokens_per_s


@dataclass(slots=True)
class ServedModel:
    """One model and the live nodes that hold layers of it."""

    card: ModelCard
    nodes: dict[NodeId, FleetNode] = field(default_factory=dict)
    shard_ends: Counter[int] = field(default_factory=Counter)
    """How many nodes' shards end at a layer, those that drain left out."""
    emptied_at: float = 0.0
    """When its last node went, if it has none."""
    structure_version: int = 0
    load_version: int = 0

    @property
    def model_key(self) -> ModelKey:
        return self.card.model_key

    def ready_nodes(self) -> list[FleetNode]:
        return [node for node in self.nodes.values() if node.is_ready]

    def mark_structure_changed(self) -> None:
        self.structure_version += 1
        self.load_version += 1
