"""Who is to blame for a failed attempt, and what follows for them.

    the culprit's own failure        its fault; if the tracker could not reach it, it is suspected too
    a link between two nodes broke   booked to the link; the node behind it is suspected, and so left out of new
                                     choices until the tracker has called it itself
    the probe of a suspect fails     what was booked to links towards it becomes its own fault
    overload, or nobody's fault      nothing

Decides; what is to be told to the fleet comes back as events.
"""

from collections.abc import Sequence

from meshnet_protocol.ids import NodeId
from meshnet_protocol.routes import Route
from meshnet_tracker.errors import AttemptFailedError
from meshnet_tracker.fleet_events import FleetEvent, NodeFaulted, NodeSuspected
from meshnet_tracker.link_faults import LinkFaults


class Blame:
    """Keeps the faults of links; those of nodes are the fleet's."""

    def __init__(self) -> None:
        self.links = LinkFaults()

    def judge(
        self, route: Route, failure: AttemptFailedError, now: float
    ) -> tuple[Sequence[NodeId], Sequence[FleetEvent]]:
        """The nodes that may be guilty, and what the fleet must hear. A name that is not on the route is no name."""
        if failure.is_blameless:
            return (), ()
        culprit = failure.culprit if failure.culprit in route.node_ids else None
        culprit = culprit or route.head.node_id
        reporter = failure.reporter
        if reporter is not None and reporter in route.node_ids and reporter != culprit:
            guilty = self.links.report(reporter, culprit, now)
            faulted = [NodeFaulted(guilty)] if guilty else []
            return (reporter, culprit), [NodeSuspected(culprit), *faulted]
        if failure.wants_probe:
            return (culprit,), [NodeFaulted(culprit), NodeSuspected(culprit)]
        return (culprit,), [NodeFaulted(culprit)]

    def condemned(self, node_id: NodeId) -> Sequence[FleetEvent]:
        """The tracker's own probe of the suspect failed."""
        return [NodeFaulted(node_id)] if self.links.condemn(node_id) else ()
