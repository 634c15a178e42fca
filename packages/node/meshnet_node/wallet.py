"""The wallet: an Ed25519 key pair in a file only its owner can read. It names who owns a node."""

import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet_node.errors import WalletError
from meshnet_protocol.ids import WalletId


@dataclass(frozen=True, slots=True)
class Wallet:
    wallet_id: WalletId
    """The public key, 64 hexadecimal characters."""
    private_key: Ed25519PrivateKey

    @classmethod
    def load_or_create(cls, path: Path) -> "Wallet":
        """Read the key file, or make a new one (mode 0600). Raises WalletError if the file is not a key."""
        if not path.exists():
            _create(path)
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise WalletError(f"{path} is not a readable wallet key ({error}); name another with --wallet") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise WalletError(f"{path} holds another kind of key; a wallet is an Ed25519 key")
        return cls(WalletId(key.public_key().public_bytes_raw().hex()), key)


def _create(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # Two nodes of one owner may start at the same moment: the key is written whole under a name of its own,
    # and the first to link it into place wins.
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(pem)
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    except OSError as error:
        raise WalletError(f"cannot create the wallet {path}: {error}; name another with --wallet") from error
