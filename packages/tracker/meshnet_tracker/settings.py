"""Everything that can be set on a tracker, checked once where it is made."""

import math
import re
import secrets
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meshnet_protocol.hosts import is_loopback
from meshnet_protocol.ids import ModelKey, WalletId
from meshnet_protocol.messages import SharedFile
from meshnet_tracker.candidates import ROUTE_CANDIDATES_MAX
from meshnet_tracker.errors import SettingsError
from meshnet_tracker.policies import POLICIES
from meshnet_tracker.policies.proportional import PROPORTIONAL
from meshnet_tracker.routing_stats import RoutingConfig

HEARTBEAT_PERIOD_S_MIN = 0.01
TOKEN_TIMEOUT_S_MIN = 0.01
PORT_MAX = 65535
CANDIDATES_MAX = 1000
KEY_CHARS_MIN = 8
SAFE_KEY_CHARS_MIN = 16
_KEY = re.compile(r"[!-~]{8,512}")
_WALLET = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model file that the tracker hands to nodes."""

    name: str
    model_key: ModelKey
    path: Path
    shared: SharedFile
    manifest: bytes
    """As nodes write it, in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerSettings:
    """Raises SettingsError, naming setting and value, if one is out of its range. Port 0: any free one.

    Secrets are never part of its text.
    """

    host: str = "127.0.0.1"
    port: int = 8090
    heartbeat_period_s: float = 1.0
    """What nodes are told; a node that misses three in a row is lost."""
    route_explore_share: float = 0.3
    route_weight_alpha: float = 1.0
    route_stats_half_life_s: float = 600.0
    route_min_sample_tokens: int = 8
    route_policy: str = PROPORTIONAL
    route_candidates_max: int = ROUTE_CANDIDATES_MAX
    model_aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names under which models may be asked for, and the names they stand for."""
    store: Sequence[StoredModel] = ()
    """Model files that are handed to nodes."""
    database: str | None = None
    """Where the latest calls outlive the process: ``sqlite:///FILE``. None: nowhere."""
    token_timeout_s: float = 30.0
    """How long a route may give no sign of life (a token, a part of the prompt) before another one takes over."""
    chat_timeout_s: float = 3600.0
    """How long a chat may take in all."""
    drain_timeout_s: float = 30.0
    """How long running chats may go on when the tracker is told to stop."""
    comment_period_s: float = 10.0
    """How long a client's stream may be silent before a comment says that somebody is still there."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    admin_keys: tuple[str, ...] = field(default=(), repr=False)
    join_tokens: tuple[str, ...] = field(default=(), repr=False)
    allowed_wallets: frozenset[WalletId] = frozenset()
    allowed_hosts: frozenset[str] = frozenset()
    """Names, beside addresses and localhost, by which browsers may call the tracker."""
    server_tls: ssl.SSLContext | None = None
    """What https is served with; None: plain HTTP."""
    client_tls: ssl.SSLContext | None = None
    """What nodes' certificates are checked with; None: as the system does."""
    is_open: bool = False
    """The owner wants no keys although others can reach the tracker."""
    show_texts: bool = False
    """Whether prompts and answers of the latest calls are kept in memory and shown to the owner."""
    probes_models: bool = True
    """Whether a model counts as ready only when a token came over its nodes. Tests of other things believe nodes."""
    checks_reachability: bool = True
    """Whether a node must answer at its address before it is registered. Tests of other things go without."""

    def __post_init__(self) -> None:
        if not self.host:
            raise SettingsError("--host must not be empty")
        if not 0 <= self.port <= PORT_MAX:
            raise SettingsError(f"--port must be 0 (any free one) to {PORT_MAX}, not {self.port}")
        if not HEARTBEAT_PERIOD_S_MIN <= self.heartbeat_period_s < math.inf:
            raise SettingsError(
                f"--heartbeat-period must be at least {HEARTBEAT_PERIOD_S_MIN} seconds, not {self.heartbeat_period_s}"
            )
        if self.route_policy not in POLICIES:
            raise SettingsError(f"--route-policy must be one of {', '.join(POLICIES)}, not {self.route_policy!r}")
        if not 1 <= self.route_candidates_max <= CANDIDATES_MAX:
            raise SettingsError(
                f"--route-candidates-max must be 1 to {CANDIDATES_MAX}, not {self.route_candidates_max}"
            )
        if not 0 < self.comment_period_s < math.inf:
            raise SettingsError(f"comment period must be more than 0 seconds, got {self.comment_period_s}")
        self._check_times()
        for alias, name in self.model_aliases.items():
            if not alias or not name:
                raise SettingsError(f"--model-alias must be ALIAS=MODEL, got {alias!r}={name!r}")
        _ = self.routing
        self._check_secrets()
        self._check_openness()

    def _check_secrets(self) -> None:
        for flag, secrets_ in (
            ("--api-key", self.api_keys),
            ("--admin-key", self.admin_keys),
            ("--join-token", self.join_tokens),
        ):
            if not all(_KEY.fullmatch(secret) for secret in secrets_):
                raise SettingsError(f"{flag}: use {KEY_CHARS_MIN} to 512 printable characters without spaces")
        if set(self.api_keys) & set(self.admin_keys):
            raise SettingsError("--api-key and --admin-key must differ: whoever may chat must not own the tracker")
        for wallet in self.allowed_wallets:
            if not _WALLET.fullmatch(wallet):
                raise SettingsError(f"--allow-wallet {wallet!r}: a wallet is 64 hexadecimal characters, in lower case")

    @property
    def has_short_keys(self) -> bool:
        secrets_ = (*self.api_keys, *self.admin_keys, *self.join_tokens)
        return any(len(secret) < SAFE_KEY_CHARS_MIN for secret in secrets_)

    def _check_openness(self) -> None:
        """Beyond loopback nothing is open unless somebody said so."""
        if self.is_open or is_loopback(self.host):
            return
        missing = []
        if not (self.api_keys or self.admin_keys):
            missing += [f"--{name}-key {secrets.token_urlsafe(24)}" for name in ("api", "admin")]
        if not (self.join_tokens or self.allowed_wallets):
            missing.append(f"--join-token {secrets.token_urlsafe(24)}")
        if missing:
            raise SettingsError(
                f"--host {self.host} lets others reach this tracker, so it needs keys. Add to the command: "
                f"{' '.join(missing)} (these were drawn for you; clients send an API key, nodes start with the same "
                "--join-token; --allow-wallet does instead of a token). On a network where you trust everybody: --open"
            )

    def _check_times(self) -> None:
        for flag, seconds, least in (
            ("--token-timeout", self.token_timeout_s, TOKEN_TIMEOUT_S_MIN),
            ("--chat-timeout", self.chat_timeout_s, TOKEN_TIMEOUT_S_MIN),
            ("--drain-timeout", self.drain_timeout_s, 0),
        ):
            if not least <= seconds < math.inf:
                raise SettingsError(f"{flag} must be at least {least:g} seconds, not {seconds}")

    @property
    def routing(self) -> RoutingConfig:
        return RoutingConfig(
            explore_share=self.route_explore_share,
            weight_alpha=self.route_weight_alpha,
            stats_half_life_s=self.route_stats_half_life_s,
            min_sample_tokens=self.route_min_sample_tokens,
        )
