"""Certificates as people give them: files, made into the contexts that servers and clients work with.

A private authority (``--tls-ca``, ``MESHNET_TLS_CA``) is trusted beside the system's own, never instead of them.
"""

import os
import ssl
from pathlib import Path

from meshnet_cli.errors import CommandError

CA_VARIABLE = "MESHNET_TLS_CA"


def server_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """None without a certificate: plain HTTP. Raises CommandError, naming the flag at fault."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise CommandError("--tls-cert and --tls-key belong together: give both, or neither")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise CommandError(f"--tls-cert {cert}, --tls-key {key}: {error}; both are PEM files, and one pair") from error
    return context


def client_context(ca: Path | None) -> ssl.SSLContext | None:
    """None without an authority of one's own: the system's are trusted. Raises CommandError."""
    if ca is None:
        return None
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise CommandError(f"--tls-ca {ca}: {error}; give a PEM file with the authority's certificate") from error
    return context


def context_of_environment() -> ssl.SSLContext | None:
    """For commands that only read: the authority comes from the environment."""
    ca = os.environ.get(CA_VARIABLE)
    return client_context(Path(ca)) if ca else None


def _no_password() -> str:
    raise CommandError("--tls-key: the key is encrypted; a service needs one that is not (mode 0600)")
