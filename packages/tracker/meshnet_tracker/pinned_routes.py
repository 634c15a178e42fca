"""Routes that a client asks for by name: the very nodes it lists, or an error that says why not."""

from collections.abc import Sequence

from meshnet_protocol.ids import NodeId
from meshnet_protocol.routes import Route, chain_hops
from meshnet_tracker.errors import InvalidRouteError, RouteUnavailableError
from meshnet_tracker.fleet import Fleet, FleetNode, ServedModel


def pinned_route(fleet: Fleet, model: ServedModel, pinned: Sequence[NodeId]) -> Route:
    """Raises InvalidRouteError if it can never work, RouteUnavailableError if it does not now."""
    nodes = [_pinned_node(fleet, model, node_id) for node_id in pinned]
    try:
        route = Route(model.model_key, chain_hops([(node.node_id, node.shard) for node in nodes]))
    except ValueError as error:
        raise InvalidRouteError(f"The route does not join up: {error}.", param="route") from error
    last_layer = model.card.layer_count - 1
    if route.hops[-1].end_layer != last_layer:
        raise InvalidRouteError(
            f"The route ends at layer {route.hops[-1].end_layer}, the model at {last_layer}.", param="route"
        )
    for hop, node in zip(route.hops, nodes, strict=True):
        if hop.start_layer not in node.entry_layers:
            raise RouteUnavailableError(f"Node {node.node_id} cannot be entered at layer {hop.start_layer} yet.")
    return route


def _pinned_node(fleet: Fleet, model: ServedModel, node_id: NodeId) -> FleetNode:
    node = fleet.node(node_id)
    if node is None and fleet.has_departed(node_id):
        raise RouteUnavailableError(f"Node {node_id} has left the mesh.")
    if node is None:
        raise InvalidRouteError(
            f"The route names a node that was never here: {node_id!r}; write ids in full, as GET /v1/nodes lists them.",
            param="route",
        )
    if node.model_key != model.model_key:
        raise InvalidRouteError(f"Node {node_id} serves {node.model_key}, not {model.model_key}.", param="route")
    if not node.is_ready:
        raise RouteUnavailableError(f"Node {node_id} is {node.hindrance}.")
    return node
