"""What a process asks a tracker before it is a node: who has a model's file, which layers would help.

Blocking, because the model is found and loaded before anything is served. Where the process has a wallet, it signs
each question: a tracker with keys answers only those who may join.
"""

import ssl
from collections.abc import Generator, Mapping
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
        return self.fetch(f"{self.url.rstrip('/')}{path}" + (f"?{urlencode(query)}" if query else ""))

    def fetch(self, address: str) -> httpx.Response:
        """From the tracker or from a node. Raises as ``get`` does."""
        with httpx.Client(timeout=REQUEST_TIMEOUT_S, verify=self.tls or True, auth=self.signing()) as http:
            return http.get(address)

    def signing(self) -> httpx.Auth | None:
        """Signs every request to the tracker, each anew: a proof is good once."""
        return None if self.membership is None else _Signing(self.url, self.membership)


class _Signing(httpx.Auth):
    requires_response_body = True

    def __init__(self, url: str, membership: Membership) -> None:
        self._tracker = httpx.URL(url)
        self._membership = membership

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if (request.url.host, request.url.port) == (self._tracker.host, self._tracker.port):
            greeting = yield httpx.Request("GET", self._tracker.join("/v1/nodes/greeting"))
            greeting.raise_for_status()
            self._membership.trust.greet(msgspec.json.decode(greeting.content, type=TrackerGreeting))
            asked = request.url.raw_path.decode()
            request.headers.update(self._membership.headers(asked, b""))
            request.headers[WALLET_HEADER] = self._membership.wallet.wallet_id
        yield request
