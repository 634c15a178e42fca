"""Who may call what: surfaces, the keys that open them, and a browser's login.

    surface   what                                        opened by
    public    /health, the login page, the page's files   nobody needs a key
    node      what nodes say of themselves                their wallets' signatures (``node_auth.py``)
    member    what a node must know before it joins       a signature by who may join, or the admin key
    client    the OpenAI endpoints                        an API key or the admin key
    admin     everything else                             the admin key, or a login with it

A tracker without any key is open; its settings allow that on loopback only, or where its owner says so. As soon
as there is one key, every call needs one, from loopback too: a reverse proxy's calls all come from there. Where
there are API keys but no admin key, the admin surface is closed.

A login's cookie holds when it ends, under an HMAC with the admin key: nothing to store, good at every tracker with
the same key, void when the key is changed. Keys are compared by their hashes, so that no comparison tells how much of
a guess was right.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum

from meshnet_protocol.proofs import SIGNATURE_HEADER

LOGIN_PATH, LOGOUT_PATH = "/login", "/logout"
LOGIN_COOKIE = "meshnet_login"
LOGIN_S = 12 * 3600
OPENAI_PATH = re.compile(r"/v1/(chat/completions|completions|models(/.*)?)|/health(/ready)?")
MEMBER_PATH = re.compile(r"/v1/nodes|/v1/nodes/(suggest|pass)|/v1/store(/.*)?")
NODE_PATHS = frozenset(f"/v1/nodes/{verb}" for verb in ("greeting", "register", "heartbeat", "leave"))
_PUBLIC_PATH = re.compile(r"/health(/ready)?|/login|/logout|/ui(/.*)?")


class Surface(StrEnum):
    PUBLIC = "public"
    NODE = "node"
    MEMBER = "member"
    CLIENT = "client"
    ADMIN = "admin"


class Role(IntEnum):
    NOBODY = 0
    CLIENT = 1
    SIGNER = 2
    """Has signed the request; whether by a wallet that may is still to be checked."""
    ADMIN = 3


class Refusal(StrEnum):
    WRONG_KEY = "wrong key"
    ADMIN_KEY_NEEDED = "the admin key is needed"
    CLOSED = "closed"
    """There is no admin key that could open it."""


def surface_of(path: str) -> Surface:
    """What is not known to be anybody's is the owner's."""
    if _PUBLIC_PATH.fullmatch(path):
        return Surface.PUBLIC
    if path in NODE_PATHS:
        return Surface.NODE
    if MEMBER_PATH.fullmatch(path):
        return Surface.MEMBER
    return Surface.CLIENT if OPENAI_PATH.fullmatch(path) else Surface.ADMIN


class Access:
    """The keys of one tracker."""

    def __init__(self, *, api_keys: Iterable[str] = (), admin_keys: Iterable[str] = ()) -> None:
        self._admin_keys = tuple(key.encode() for key in admin_keys)
        self._roles = {_hash(key.encode()): Role.CLIENT for key in api_keys}
        self._roles |= {_hash(key): Role.ADMIN for key in self._admin_keys}

    @property
    def is_guarded(self) -> bool:
        return bool(self._roles)

    def role_of(self, headers: Mapping[bytes, bytes], *, is_own_page: bool, now: float) -> Role:
        """``headers`` with lower-case names; a login counts only for the tracker's own pages."""
        if not self.is_guarded:
            return Role.ADMIN
        role = self._roles.get(_hash(_bearer_of(headers)), Role.NOBODY)
        if role is Role.NOBODY and SIGNATURE_HEADER.encode() in headers:
            return Role.SIGNER
        if role is Role.NOBODY and is_own_page and self._is_logged_in(headers.get(b"cookie", b""), now):
            return Role.ADMIN
        return role

    def refusal(self, surface: Surface, role: Role) -> Refusal | None:
        """Why somebody of this role may not use the surface; None: they may."""
        if surface in (Surface.PUBLIC, Surface.NODE) or role is Role.ADMIN:
            return None
        if surface is Surface.MEMBER and role is Role.SIGNER:
            return None
        if surface is Surface.CLIENT:
            return None if role is Role.CLIENT else Refusal.WRONG_KEY
        if not self._admin_keys:
            return Refusal.CLOSED
        return Refusal.ADMIN_KEY_NEEDED if role is Role.CLIENT else Refusal.WRONG_KEY

    def log_in(self, key: bytes, now: float) -> str | None:
        """The cookie's value for whoever knows an admin key."""
        if self._roles.get(_hash(key)) is not Role.ADMIN:
            return None
        ends_at = str(int(now + LOGIN_S))
        return f"{ends_at}.{_seal(key, ends_at)}"

    def _is_logged_in(self, cookies: bytes, now: float) -> bool:
        ends_at, _, seal = _cookie_of(cookies).partition(".")
        if not (ends_at.isascii() and ends_at.isdigit() and len(ends_at) < 20 and now <= int(ends_at)):
            return False
        return any(hmac.compare_digest(_seal(key, ends_at).encode(), seal.encode()) for key in self._admin_keys)


def shows_a_key(headers: Mapping[bytes, bytes]) -> bool:
    return bool(_bearer_of(headers))


def client_name(headers: Mapping[bytes, bytes]) -> str:
    """Tells one key's calls from another's and gives the key not away; empty without a key."""
    key = _bearer_of(headers)
    return _hash(key).hex()[:12] if key else ""


def _bearer_of(headers: Mapping[bytes, bytes]) -> bytes:
    scheme, _, key = headers.get(b"authorization", b"").strip().partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _cookie_of(cookies: bytes) -> str:
    pairs = (pair.strip().partition("=") for pair in cookies.decode("latin-1").split(";"))
    return next((value for name, _, value in pairs if name == LOGIN_COOKIE), "")


def _seal(key: bytes, ends_at: str) -> str:
    return hmac.new(key, f"meshnet login until {ends_at}".encode(), hashlib.sha256).hexdigest()


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
