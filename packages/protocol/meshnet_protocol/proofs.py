"""Proofs: a node's wallet signs every word that changes what the tracker knows of it.

    signature = Ed25519(wallet, label, path, boot, sequence, the very bytes of the body)

``boot`` is drawn anew by every tracker process and handed out in its greeting: a proof made for one tracker, or
for an earlier run of it, is worth nothing to another. ``sequence`` is the tracker's own clock in microseconds, as
the sender follows it, and always rises: within one run a proof is good once, and for a short time. So neither
side needs to trust the other's clock, and a tracker remembers no more than a number per sender.

A join token is never sent. Who knows it proves so by an HMAC over the same bytes.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from meshnet_protocol.errors import RemoteProtocolError

BOOT_HEADER = "x-meshnet-boot"
SEQUENCE_HEADER = "x-meshnet-sequence"
SIGNATURE_HEADER = "x-meshnet-signature"
JOIN_HEADER = "x-meshnet-join"
WALLET_HEADER = "x-meshnet-wallet"
"""Whose signature it is, where the body does not say so."""

PUBLIC_KEY_CHARS = 64
BOOT_CHARS_MAX = 64
_LABEL = b"meshnet node request 1"


@dataclass(frozen=True, slots=True)
class Proof:
    """What stands in a request's headers. ``join`` is empty where no join token is known."""

    boot: str
    sequence: int
    signature: bytes
    join: bytes = b""

    def to_headers(self) -> dict[str, str]:
        headers = {
            BOOT_HEADER: self.boot,
            SEQUENCE_HEADER: str(self.sequence),
            SIGNATURE_HEADER: self.signature.hex(),
        }
        return headers | ({JOIN_HEADER: self.join.hex()} if self.join else {})

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> "Proof":
        """``headers`` with lower-case names. Raises RemoteProtocolError if they hold no proof."""
        boot, sequence = headers.get(BOOT_HEADER, ""), headers.get(SEQUENCE_HEADER, "")
        if not boot or len(boot) > BOOT_CHARS_MAX or not (sequence.isascii() and sequence.isdigit()):
            raise RemoteProtocolError(f"the request is not signed: {BOOT_HEADER} or {SEQUENCE_HEADER} is missing")
        if len(sequence) > 20:
            raise RemoteProtocolError(f"{SEQUENCE_HEADER} is too large")
        try:
            signature, join = (bytes.fromhex(headers.get(name, "")) for name in (SIGNATURE_HEADER, JOIN_HEADER))
        except ValueError as error:
            raise RemoteProtocolError(f"{SIGNATURE_HEADER} and {JOIN_HEADER} are hexadecimal: {error}") from error
        return cls(boot, int(sequence), signature, join)


def prove(key: Ed25519PrivateKey, *, path: str, boot: str, sequence: int, body: bytes, join_token: str = "") -> Proof:
    """The proof to send with ``body`` to ``path``."""
    text = _signed_text(path=path, boot=boot, sequence=sequence, body=body)
    join = hmac.digest(join_token.encode(), text, hashlib.sha256) if join_token else b""
    return Proof(boot, sequence, key.sign(text), join)


def is_signed_by(wallet: str, proof: Proof, *, path: str, body: bytes) -> bool:
    """Whether the owner of ``wallet`` made this proof for these very bytes."""
    try:
        key = public_key_of(wallet)
        key.verify(proof.signature, _signed_text(path=path, boot=proof.boot, sequence=proof.sequence, body=body))
    except (RemoteProtocolError, InvalidSignature):
        return False
    return True


def knows_token(token: str, proof: Proof, *, path: str, body: bytes) -> bool:
    """Whether whoever made this proof knew the join token."""
    text = _signed_text(path=path, boot=proof.boot, sequence=proof.sequence, body=body)
    return hmac.compare_digest(hmac.digest(token.encode(), text, hashlib.sha256), proof.join)


def public_key_of(text: str) -> Ed25519PublicKey:
    """A public key from its 64 hexadecimal characters. Raises RemoteProtocolError if it is none."""
    try:
        if len(text) != PUBLIC_KEY_CHARS:
            raise ValueError(f"{len(text)} characters")
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(text))
    except ValueError as error:
        raise RemoteProtocolError(
            f"{text[:PUBLIC_KEY_CHARS]!r} is not a public key of {PUBLIC_KEY_CHARS} hexadecimal characters"
        ) from error


def public_key_text(key: Ed25519PrivateKey) -> str:
    """The public half, as 64 hexadecimal characters."""
    return key.public_key().public_bytes_raw().hex()


def _signed_text(*, path: str, boot: str, sequence: int, body: bytes) -> bytes:
    """Neither path, boot nor a number has a line break, so no two requests have the same text."""
    return b"\n".join((_LABEL, path.encode(), boot.encode(), str(sequence).encode(), body))
