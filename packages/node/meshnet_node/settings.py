"""What a node can be told at start, checked before anything is loaded."""

import math
import re
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from meshnet_node.errors import SettingsError
from meshnet_protocol.frames import STEP_ROWS_MAX
from meshnet_protocol.hosts import is_loopback
from meshnet_protocol.ids import INSTANCE_PATTERN
from meshnet_protocol.layers import LayerRange

EXACT_MODES = ("auto", "on", "off")
WILDCARD_HOSTS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not bound to


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Raises SettingsError, fit to be shown to a person, if a value makes no sense."""

    model: str
    layers: LayerRange | None
    """None: the whole model, or what the tracker suggests if ``asks_for_layers``."""
    tracker: str
    wallet: Path
    cache_dir: Path
    host: str = "127.0.0.1"
    port: int = 8091
    advertise: str | None = None
    """Base URL by which tracker and other nodes reach this one; None: made of host and port."""
    instance: str | None = None
    """Tells this machine from the owner's others; None: host name and port."""
    threads: int = 1
    slots: int = 4
    context_tokens: int = 4096
    chunk_tokens: int = 128
    queue: int = 8
    """Chats that may wait for a slot."""
    queue_timeout_s: float = 2.0
    exact: str = "auto"
    gpu_layers: int = 0
    layer_delay_ms: float = 0.0
    asks_for_layers: bool = False
    upstream: str | None = None
    """Base URL of a server to stand in front of, instead of holding layers."""
    upstream_key: str | None = field(default=None, repr=False)
    model_name: str | None = None
    """Which of the upstream's models."""
    drain_timeout_s: float = 30.0
    join_token: str = field(default="", repr=False)
    server_tls: ssl.SSLContext | None = None
    """What https, and with it links, are served with; None: plain HTTP."""
    client_tls: ssl.SSLContext | None = None
    """What the certificates of tracker and nodes are checked with; None: as the system does."""
    tracker_key: str | None = None
    """The only key a tracker may sign tickets with; None: the one it greets with."""

    def __post_init__(self) -> None:
        _check_url("--tracker", self.tracker)
        if self.advertise is not None:
            _check_url("--advertise", self.advertise)
        if self.upstream is not None:
            _check_url("--upstream", self.upstream)
        _check_at_least("--threads", self.threads, 1)
        _check_at_least("--slots", self.slots, 1)
        _check_at_least("--context-tokens", self.context_tokens, 64)
        if not 1 <= self.chunk_tokens <= STEP_ROWS_MAX:
            raise SettingsError(f"--chunk-tokens {self.chunk_tokens}: use 1 to {STEP_ROWS_MAX}")
        _check_at_least("--queue", self.queue, 0)
        _check_at_least("--queue-timeout", self.queue_timeout_s, 0)
        if self.exact not in EXACT_MODES:
            raise SettingsError(f"--exact {self.exact}: use one of {', '.join(EXACT_MODES)}")
        _check_at_least("--layer-delay-ms", self.layer_delay_ms, 0)
        _check_at_least("--drain-timeout", self.drain_timeout_s, 0)
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"--port {self.port}: use 0 (any free port) to 65535")
        if self.instance is not None and not INSTANCE_PATTERN.fullmatch(self.instance.lower()):
            raise SettingsError(
                f"--instance {self.instance!r}: use 1 to 32 letters of a-z, digits and '-' (not at an end)"
            )
        if self.tracker_key is not None and not re.fullmatch(r"[0-9a-f]{64}", self.tracker_key):
            raise SettingsError("--tracker-key: use the 64 hexadecimal characters that the tracker logs when it starts")

    def advertised_url(self, port: int) -> str:
        """The base URL others reach this node by, once the real port is known."""
        if self.advertise is not None:
            return self.advertise.rstrip("/")
        host = _address_towards(self.tracker) if self.host in WILDCARD_HOSTS else self.host
        scheme = "http" if self.server_tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def is_private(self) -> bool:
        """Only this machine can reach the node, as far as it knows: no proxy gives it another address."""
        host = self.host if self.advertise is None else urlsplit(self.advertise).hostname or ""
        return is_loopback(self.host) and is_loopback(host)

    def instance_name(self, port: int) -> str:
        """The instance as given, in small letters, or made of the machine's name and the port."""
        if self.instance is not None:
            return self.instance.lower()
        machine = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-")[:24].strip("-")
        return f"{machine or 'node'}-{port}"


def _check_url(flag: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise SettingsError(f"{flag} {url!r}: write a base URL such as http://192.0.2.7:8090")


def _check_at_least(flag: str, value: float, least: float) -> None:
    if not least <= value < math.inf:
        raise SettingsError(f"{flag} {value}: use {least:g} or more")


def _address_towards(url: str) -> str:
    """This machine's address on the network that leads to ``url``; a UDP connect sends nothing."""
    parts = urlsplit(url)
    try:
        family, kind, _, _, address = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise SettingsError(f"cannot tell this machine's address towards {url} ({error}); set --advertise") from error
