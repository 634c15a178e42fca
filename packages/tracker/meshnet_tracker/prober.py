"""Calls suspected nodes, until they answer or are gone: evidence instead of hearsay.

One task for each suspect, which asks the node's ``/health``: the node answers 200 there only if its engine does.
The first call is made at once; further ones come slower and slower.
"""

import asyncio
from collections.abc import Callable

import aiohttp

from meshnet_protocol.awake_timeout import AwakeTimeout
from meshnet_protocol.ids import NodeId
from meshnet_tracker.fleet import Fleet, FleetEvent, FleetNode, NodeProbed

PROBE_S_MAX = 2.0
PROBE_PERIOD_S_FIRST, PROBE_PERIOD_S_MAX = 0.25, 8.0
SUSPECTS_MAX = 256
"""Called at a time; further suspects wait until one of these is cleared or gone."""


class Prober:
    """``tell`` takes the verdicts."""

    def __init__(self, fleet: Fleet, tell: Callable[[FleetEvent], None]) -> None:
        self._fleet = fleet
        self._tell = tell
        self._called: set[NodeId] = set()
        self._wanted = asyncio.Event()

    def look(self) -> None:
        """Somebody has come under suspicion."""
        self._wanted.set()

    async def run(self, http: aiohttp.ClientSession) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                for node in self._fleet.nodes():
                    if node.is_suspected and node.node_id not in self._called and len(self._called) < SUSPECTS_MAX:
                        self._called.add(node.node_id)
                        tasks.create_task(self._call_until_cleared(http, node.node_id), name=f"probe {node.node_id}")

    async def _call_until_cleared(self, http: aiohttp.ClientSession, node_id: NodeId) -> None:
        period_s = PROBE_PERIOD_S_FIRST
        try:
            while (node := self._fleet.node(node_id)) is not None and node.is_suspected:
                is_well = await _is_well(http, node)
                self._tell(NodeProbed(node_id, node.registration.incarnation, is_well))
                if not is_well:
                    await asyncio.sleep(period_s)
                    period_s = min(2 * period_s, PROBE_PERIOD_S_MAX)
        finally:
            self._called.discard(node_id)
            self.look()


async def _is_well(http: aiohttp.ClientSession, node: FleetNode) -> bool:
    try:
        url = f"{node.registration.url.rstrip('/')}/health"
        async with AwakeTimeout(PROBE_S_MAX), http.get(url, allow_redirects=False) as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError):  # TimeoutError is one too.
        return False
