"""The route of a chat that comes straight to a node, and not through the tracker: this node alone."""

from uuid import uuid4

from meshnet_protocol.ids import ModelKey, NodeId, SessionId
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import PlannedHop, RoutePlan


def plan_alone(node_id: NodeId, model_key: ModelKey, layers: LayerRange) -> RoutePlan:
    """``layers``: all that the model has."""
    hop = PlannedHop(node_id=node_id, url="", start_layer=layers.first, end_layer=layers.last)
    return RoutePlan(session_id=SessionId(uuid4().hex), model_key=model_key, hops=(hop,))
