"""The wallet: an Ed25519 key pair in a file only its owner can read. It names who owns a node, and signs for it."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet_node.errors import WalletError
from meshnet_protocol.ids import WalletId
from meshnet_protocol.proofs import public_key_text


@dataclass(frozen=True, slots=True)
class Wallet:
    wallet_id: WalletId
    """The public key, 64 hexadecimal characters."""
    private_key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def load_or_create(cls, path: Path) -> "Wallet":
        """Read the key file, or make a new one (mode 0600). Raises WalletError if the file is not a key."""
        key = load_or_create_key(path, flag="--wallet")
        return cls(WalletId(public_key_text(key)), key)


def load_or_create_key(path: Path, *, flag: str) -> Ed25519PrivateKey:
    """The Ed25519 key in a file of mode 0600, made if there is none.

    Raises WalletError, naming ``flag``, if the file is no such key or if others may read it.
    """
    try:
        if not path.exists():
            _create(path)
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise WalletError(f"{path} is not a readable key file ({error}); name another with {flag}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise WalletError(f"{path} holds another kind of key, not Ed25519; name another with {flag}")
    _check_private(path)
    return key


def _check_private(path: Path) -> None:
    """Where files have modes: who else can read the key can be this owner."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise WalletError(f"{path} can be read by others: chmod 600 {path}")


def _create(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # Two nodes of one owner may start at the same moment: the key is written whole under a name of its own,
    # and the first to link it into place wins.
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(pem)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
