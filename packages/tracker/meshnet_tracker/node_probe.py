"""Goes and looks whether a node is where it says it is: at registration, before anybody is sent there.

A node behind a firewall, or one that advertises an address only its own machine knows, would register well and
then fail every chat. Its owner learns at once, with what to set or to open.
"""

import asyncio
from urllib.parse import urlsplit

import aiohttp
import msgspec

from meshnet_protocol.awake_timeout import AwakeTimeout
from meshnet_protocol.hosts import is_loopback
from meshnet_protocol.ids import NodeId
from meshnet_protocol.messages import Message, Registration
from meshnet_tracker.errors import UnreachableNodeError

PROBE_S_MAX = 3.0
PROBES_AT_ONCE_MAX = 32
ANSWER_BYTES_MAX = 64 * 1024


class _Health(Message, frozen=True, kw_only=True):
    node_id: NodeId


class NodeProbe:
    """``session`` is set while the server runs."""

    def __init__(self) -> None:
        self.session: aiohttp.ClientSession | None = None
        self._turns = asyncio.Semaphore(PROBES_AT_ONCE_MAX)

    async def check_reachable(self, registration: Registration) -> None:
        """Raises UnreachableNodeError, naming the remedy, unless this very node answers at its address."""
        assert self.session is not None, "nodes are probed only while the server runs"
        url = registration.url.rstrip("/")
        try:
            async with (
                self._turns,
                AwakeTimeout(PROBE_S_MAX),
                self.session.get(f"{url}/health", allow_redirects=False) as response,
            ):
                answer = await response.content.read(ANSWER_BYTES_MAX)
        except TimeoutError as error:
            raise UnreachableNodeError(_advice(url, f"no answer within {PROBE_S_MAX:g} s")) from error
        except (aiohttp.ClientError, OSError) as error:
            raise UnreachableNodeError(_advice(url, str(error) or type(error).__name__)) from error
        found = _node_id_of(answer)
        if found != registration.node_id:
            who = f"node {found}" if found else f"something else (status {response.status})"
            raise UnreachableNodeError(_advice(url, f"{who} answers there instead of {registration.node_id}"))


def _node_id_of(answer: bytes) -> NodeId | None:
    try:
        return msgspec.json.decode(answer, type=_Health).node_id
    except msgspec.MsgspecError:
        return None


def _advice(url: str, reason: str) -> str:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if is_loopback(parts.hostname or ""):
        fix = (
            "only its own machine can reach that address: "
            f"start the node with --host 0.0.0.0, or with --advertise {parts.scheme}://ADDRESS:{port}"
        )
    else:
        fix = (
            f"let the node's firewall take TCP port {port} from the tracker (for example: sudo ufw allow {port}/tcp), "
            f"start the node with --host 0.0.0.0, or name another address with --advertise {parts.scheme}://ADDRESS:PORT"
        )
    return f"the tracker cannot reach the node at {url} ({reason}): {fix}"
