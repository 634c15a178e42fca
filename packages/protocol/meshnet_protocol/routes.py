"""Hops and routes: chains of nodes that run every layer of a model exactly once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshnet_protocol.ids import ModelKey, NodeId, Signature
from meshnet_protocol.layers import LayerRange


@dataclass(frozen=True, slots=True)
class Hop:
    """A node's part in one route: the node, the shard it holds and the layers it really runs."""

    node_id: NodeId
    shard: LayerRange
    layers: LayerRange

    def __post_init__(self) -> None:
        if not self.shard.contains(self.layers):
            raise ValueError(f"{self.node_id} holds {self.shard} and cannot run {self.layers}")

    @property
    def start_layer(self) -> int:
        return self.layers.first

    @property
    def end_layer(self) -> int:
        return self.layers.last

    def work_units(self, token_count: int) -> int:
        """One work unit is one layer run for one token: what hops are paid in."""
        return self.layers.layer_count * token_count


@dataclass(frozen=True, slots=True)
class Route:
    """Hops that join end to end from layer 0 to the model's last layer.

    ``signature`` is the arm's identity for learning: ``model_key | node_id[shard] -> node_id[shard]``.
    Raises ValueError if the hops leave a gap, overlap, or do not start at 0.
    """

    model_key: ModelKey
    hops: tuple[Hop, ...]
    signature: Signature = field(init=False)
    node_ids: tuple[NodeId, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.hops:
            raise ValueError("a route needs at least one hop")
        start = 0
        for hop in self.hops:
            if hop.start_layer != start:
                raise ValueError(f"{hop.node_id} starts at layer {hop.start_layer}, not at {start}")
            start = hop.layers.next_layer
        chain = " -> ".join(f"{hop.node_id}[{hop.shard}]" for hop in self.hops)
        object.__setattr__(self, "signature", Signature(f"{self.model_key} | {chain}"))
        object.__setattr__(self, "node_ids", tuple(hop.node_id for hop in self.hops))

    @property
    def head(self) -> Hop:
        """The hop that tokenizes, embeds and talks to the tracker: always the proxy target."""
        return self.hops[0]


def chain_hops(shards: Sequence[tuple[NodeId, LayerRange]]) -> tuple[Hop, ...]:
    """Plan a chain in the order given: each hop runs from ``previous.shard_end + 1`` to its own shard's end.

    Raises ValueError, naming the node, if a shard does not hold the layer it would have to start at.
    """
    hops: list[Hop] = []
    start_layer = 0
    for node_id, shard in shards:
        if not shard.first <= start_layer <= shard.last:
            raise ValueError(f"{node_id} holds layers {shard} and cannot start at layer {start_layer}")
        hops.append(Hop(node_id, shard, shard.starting_at(start_layer)))
        start_layer = shard.next_layer
    return tuple(hops)
