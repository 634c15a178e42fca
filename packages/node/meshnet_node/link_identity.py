"""Who is at the other end of a link: both ends prove their wallets when they greet.

    connecting end                                accepting end
    Greeting(wallet, nonce)                 ──>
                                            <──   Greeting(wallet, nonce, proof)
    LinkProof(proof)                        ──>

    proof = Ed25519(wallet, label, role, the connecting end's greeting, the accepting end's)

Each signs what it was sent and what it said itself, so a proof is good on one link, in one direction, once. What
a plan says of a hop's wallet has the tracker's signature: so a session goes to the very node that the tracker chose,
and is taken from nobody but the hop before. It does not keep out who sits on the path and hands on every word: that
takes TLS.
"""

import secrets
from dataclasses import dataclass

import msgspec
from cryptography.exceptions import InvalidSignature

from meshnet_node.wallet import Wallet
from meshnet_protocol.errors import RemoteProtocolError
from meshnet_protocol.frames import Greeting, LinkProof
from meshnet_protocol.ids import WalletId
from meshnet_protocol.proofs import public_key_of

NONCE_BYTES = 32
_LABEL = b"meshnet link 1"
_CONNECTS, _ACCEPTS = b"connects", b"accepts"
NO_WALLET = WalletId("")


@dataclass(frozen=True, slots=True)
class LinkIdentity:
    """What this node says on its links. Without a wallet it proves nothing: tests of other things do so."""

    greeting: Greeting
    wallet: Wallet | None = None

    def greet(self) -> Greeting:
        """The connecting end's first word."""
        if self.wallet is None:
            return self.greeting
        return msgspec.structs.replace(
            self.greeting, wallet=self.wallet.wallet_id, nonce=secrets.token_bytes(NONCE_BYTES)
        )

    def answer(self, theirs: Greeting) -> Greeting:
        """The accepting end's first word."""
        mine = self.greet()
        return msgspec.structs.replace(mine, proof=self._sign(_ACCEPTS, theirs, mine))

    def prove(self, mine: Greeting, theirs: Greeting) -> LinkProof:
        """The connecting end's second word."""
        return LinkProof(proof=self._sign(_CONNECTS, mine, theirs))

    def _sign(self, role: bytes, connecting: Greeting, accepting: Greeting) -> bytes:
        return b"" if self.wallet is None else self.wallet.private_key.sign(_text(role, connecting, accepting))


def check_answer(mine: Greeting, theirs: Greeting, *, wanted: WalletId) -> None:
    """Raises RemoteProtocolError unless the accepting end has proven the wanted wallet; empty: any, or none."""
    if not wanted:
        return
    if theirs.wallet != wanted:
        raise RemoteProtocolError(f"{theirs.node_id} has wallet {theirs.wallet[:64] or 'none'}, not {wanted}")
    _check(theirs.wallet, theirs.proof, _text(_ACCEPTS, mine, msgspec.structs.replace(theirs, proof=b"")))


def proven_wallet(theirs: Greeting, mine: Greeting, proof: LinkProof) -> WalletId:
    """The wallet of the connecting end. Raises RemoteProtocolError if its proof is none."""
    _check(theirs.wallet, proof.proof, _text(_CONNECTS, theirs, mine))
    return theirs.wallet


def _check(wallet: WalletId, proof: bytes, text: bytes) -> None:
    try:
        public_key_of(wallet).verify(proof, text)
    except InvalidSignature as error:
        raise RemoteProtocolError(f"the other end does not prove to own wallet {wallet}") from error


def _text(role: bytes, connecting: Greeting, accepting: Greeting) -> bytes:
    return msgspec.msgpack.encode((_LABEL, role, connecting, accepting))
