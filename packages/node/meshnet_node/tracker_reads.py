"""What a process asks a tracker before it is a node: who has a model's file, which layers would help.

Blocking, because the model is found and loaded before anything is served. Where the process has a wallet, it signs
the question: a tracker with keys answers only those who may join.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

import httpx
import msgspec

from meshnet_node.tracker_client import Membership
from meshnet_protocol.messages import TrackerGreeting
from meshnet_protocol.proofs import WALLET_HEADER

REQUEST_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class TrackerReads:
    url: str
    membership: Membership | None = None
    tls: ssl.SSLContext | None = None

    def get(self, path: str, query: Mapping[str, str | float] | None = None) -> httpx.Response:
        """Raises httpx.HTTPError or msgspec.MsgspecError, or TrackerKeyError if this is not the pinned tracker."""
        base = self.url.rstrip("/")
        asked = f"{path}?{urlencode(query)}" if query else path
        with httpx.Client(timeout=REQUEST_TIMEOUT_S, verify=self.tls or True) as http:
            return http.get(f"{base}{asked}", headers=self._headers(http, base, asked))

    def _headers(self, http: httpx.Client, base: str, asked: str) -> dict[str, str]:
        if self.membership is None:
            return {}
        greeting = http.get(f"{base}/v1/nodes/greeting").raise_for_status()
        self.membership.trust.greet(msgspec.json.decode(greeting.content, type=TrackerGreeting))
        return self.membership.headers(asked, b"") | {WALLET_HEADER: self.membership.wallet.wallet_id}
