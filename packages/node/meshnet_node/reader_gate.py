"""Who may read this node's model file: whoever shows a pass of its tracker (``meshnet_protocol/tickets.py``).

A node does not know who is a member of its mesh, and need not: the tracker gives passes to those who may join, for a
few minutes each. Signatures of the readers' wallets were the alternative; they prove who asks, and not that they
may. A node that only its own machine can reach, in a mesh without a join token, asks for nothing.
"""

from meshnet_node.errors import NoPassError
from meshnet_node.tracker_trust import TrackerTrust
from meshnet_protocol.errors import RemoteProtocolError
from meshnet_protocol.tickets import Pass, read_signed


class ReaderGate:
    """Decides by the tracker's key and clock."""

    def __init__(self, trust: TrackerTrust, *, is_open: bool) -> None:
        self._trust = trust
        self._is_open = is_open

    def check(self, text: str) -> None:
        """``text``: the pass, or empty. Raises NoPassError, saying where to get one."""
        if self._is_open:
            return
        if not text:
            raise NoPassError("model files are for members of the mesh: use --model mesh:NAME, or show a pass")
        if self._trust.key is None:
            raise NoPassError("this node has not met its tracker yet, and cannot check passes")
        try:
            given = read_signed(text, self._trust.key, Pass)
        except RemoteProtocolError as error:
            raise NoPassError(str(error)) from error
        if (late_s := self._trust.now() - given.exp) > 0:
            raise NoPassError(f"the pass expired {late_s:.0f} s ago; ask the tracker for another")
