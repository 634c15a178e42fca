"""Whom the tracker believes to be a node: signed, fresh, said once, and by somebody who may join.

Every request that changes what is known of a node is signed by its wallet (``proofs.py``). A registration is held
against the wallet it names, a heartbeat or farewell against the wallet that registered the node: so nobody can
register, move or remove another owner's node.

    signed for another run, or too long ago    StaleProofError      greet and register again
    said before                                StaleProofError
    not signed by that wallet                  BadSignatureError
    a registration by a stranger               NotAdmittedError     unless everybody may join
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshnet_protocol.errors import RemoteProtocolError
from meshnet_protocol.ids import Incarnation, WalletId
from meshnet_protocol.proofs import WALLET_HEADER, Proof, is_signed_by, knows_token
from meshnet_tracker.errors import BadSignatureError, NotAdmittedError, StaleProofError

FRESH_S_MAX = 30.0
"""How far a proof's time may lie from the tracker's, either way: a slow network, and a clock that was set."""
SENDERS_MAX = 100_000
NO_INCARNATION = Incarnation("")
"""Of a process that is not a node yet."""
_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class JoinRule:
    """Who may register. Without tokens and wallets: everybody."""

    tokens: tuple[str, ...] = field(default=(), repr=False)
    wallets: frozenset[WalletId] = frozenset()

    @property
    def is_open(self) -> bool:
        return not (self.tokens or self.wallets)


def proof_of(headers: Mapping[str, str]) -> Proof:
    """The proof in a request's headers. Raises BadSignatureError if there is none."""
    try:
        return Proof.from_headers(headers)
    except RemoteProtocolError as error:
        raise BadSignatureError(f"{error}; update the node, or the tracker") from error


class NodeAuth:
    """``boot`` names this run of the tracker. Times are its clock's unix seconds, handed in."""

    def __init__(self, *, boot: str, join: JoinRule) -> None:
        self.boot = boot
        self._join = join
        self._latest: dict[tuple[WalletId, Incarnation], int] = {}

    def check(
        self, proof: Proof, *, wallet: WalletId, incarnation: Incarnation, path: str, body: bytes, now: float
    ) -> None:
        """Take a signed request in. Raises StaleProofError or BadSignatureError, and then nothing was taken in."""
        age_s = now - proof.sequence / _MICROSECONDS
        if proof.boot != self.boot:
            raise StaleProofError("signed for another run of the tracker; greet it and register again")
        if abs(age_s) > FRESH_S_MAX:
            raise StaleProofError(f"signed {age_s:.0f} s ago by the tracker's clock; greet it and register again")
        sender = (wallet, incarnation)
        if proof.sequence <= self._latest.get(sender, -1):
            raise StaleProofError("said before: a signed request is good once")
        if not is_signed_by(wallet, proof, path=path, body=body):
            raise BadSignatureError(f"not signed by wallet {wallet}", is_guess=True)
        # The latest stand last, so that the oldest are found first.
        self._latest.pop(sender, None)
        self._latest[sender] = proof.sequence
        self._forget_old(now)

    def check_may_join(self, proof: Proof, *, wallet: WalletId, path: str, body: bytes) -> None:
        """Raises NotAdmittedError, naming the remedy."""
        if self._join.is_open or wallet in self._join.wallets:
            return
        if any(knows_token(token, proof, path=path, body=body) for token in self._join.tokens):
            return
        if not self._join.tokens:
            raise NotAdmittedError(
                f"wallet {wallet} is not on the tracker's list; its owner can add it: --allow-wallet {wallet}"
            )
        problem = "the join token is another one" if proof.join else "a join token is needed"
        raise NotAdmittedError(
            f"{problem}: start the node with the tracker's --join-token, or MESHNET_JOIN_TOKEN",
            is_guess=bool(proof.join),
        )

    def check_reader(self, headers: Mapping[str, str], *, asked: str, now: float) -> None:
        """A signed question, path and query in ``asked``. Raises NodeProofError if it is not by who may join."""
        proof, wallet = proof_of(headers), WalletId(headers.get(WALLET_HEADER, ""))
        self.check(proof, wallet=wallet, incarnation=NO_INCARNATION, path=asked, body=b"", now=now)
        self.check_may_join(proof, wallet=wallet, path=asked, body=b"")

    def _forget_old(self, now: float) -> None:
        """What is older than a proof may be is refused for its age, and need not be remembered."""
        while self._latest:
            oldest, sequence = next(iter(self._latest.items()))
            if now - sequence / _MICROSECONDS <= FRESH_S_MAX and len(self._latest) <= SENDERS_MAX:
                return
            del self._latest[oldest]
