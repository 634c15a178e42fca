"""What a node knows of its tracker: the key that signs tickets, the run it greeted, and the tracker's clock.

Learnt from the greeting before every registration; the clock again from every heartbeat's reply. With a pinned key
(``--tracker-key``) a tracker that greets with another one is refused.
"""

from collections.abc import Callable
from time import monotonic

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from meshnet_node.errors import TrackerKeyError
from meshnet_protocol.errors import RemoteProtocolError
from meshnet_protocol.messages import PROTOCOL_VERSION, TrackerGreeting
from meshnet_protocol.proofs import public_key_of


class TrackerTrust:
    """``clock`` is this machine's own, and only its differences count."""

    def __init__(self, *, pinned_key: str | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._pinned_key = pinned_key
        self._clock = clock
        self._ahead_s = 0.0
        self._last_sequence = 0
        self.boot = ""
        self.key: Ed25519PublicKey | None = None
        """Signs tickets; None until the tracker has been greeted."""

    def greet(self, greeting: TrackerGreeting) -> None:
        """Raises TrackerKeyError if this is not the tracker, or not the version, that this node can trust."""
        if greeting.protocol_version != PROTOCOL_VERSION:
            raise TrackerKeyError(
                f"the tracker speaks protocol {greeting.protocol_version}, this node speaks {PROTOCOL_VERSION}: "
                "update the older of the two"
            )
        if self._pinned_key is not None and greeting.tracker_key != self._pinned_key:
            raise TrackerKeyError(
                f"the tracker's key is {greeting.tracker_key}, not the one given by --tracker-key: "
                "this is another tracker, or somebody between you and it"
            )
        try:
            self.key = public_key_of(greeting.tracker_key)
        except RemoteProtocolError as error:
            raise TrackerKeyError(f"the tracker's greeting has no key: {error}") from error
        self.boot = greeting.boot
        self.set_time(greeting.time_s)

    def set_time(self, tracker_time_s: float) -> None:
        self._ahead_s = tracker_time_s - self._clock()

    def now(self) -> float:
        """Unix seconds by the tracker's clock."""
        return self._clock() + self._ahead_s

    def next_sequence(self) -> int:
        """The tracker's time in microseconds, and always more than before."""
        self._last_sequence = max(self._last_sequence + 1, int(self.now() * 1e6))
        return self._last_sequence
