"""What a process asks a tracker before it is a node: who has a model's file, which layers would help.

Blocking, because the model is found and loaded before anything is served. Where the process has a wallet, it signs
each question: a tracker with keys answers only those who may join. A node that does not hand its file to everybody
is shown the tracker's pass.
"""

import ssl
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlencode

import httpx
import msgspec

from meshnet_node.errors import SourceError
from meshnet_node.tracker_client import Membership
from meshnet_protocol.messages import TrackerGreeting
from meshnet_protocol.proofs import WALLET_HEADER
from meshnet_protocol.tickets import PASS_HEADER, PassReply

REQUEST_TIMEOUT_S = 10.0


@dataclass(slots=True)
class _KeptPass:
    """The latest pass, or empty; nodes say when it is no good any more."""

    text: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class TrackerReads:
    url: str
    membership: Membership | None = None
    tls: ssl.SSLContext | None = None
    kept_pass: _KeptPass = field(default_factory=_KeptPass)

    def get(self, path: str, query: Mapping[str, str | float] | None = None) -> httpx.Response:
        """Raises httpx.HTTPError or msgspec.MsgspecError, or TrackerKeyError if this is not the pinned tracker."""
        return self.fetch(f"{self.url.rstrip('/')}{path}" + (f"?{urlencode(query)}" if query else ""))

    def fetch(self, address: str) -> httpx.Response:
        """From the tracker or from a node. Raises as ``get`` does, and SourceError if a node wants a pass in vain."""
        with httpx.Client(timeout=REQUEST_TIMEOUT_S, verify=self.tls or True, auth=self.signing()) as http:
            return http.get(address)

    def signing(self) -> httpx.Auth:
        """Signs every request to the tracker, each anew: a proof is good once. Shows nodes a pass if they want one."""
        return _Signing(self.url, self.membership, self.kept_pass)


Flow = Generator[httpx.Request, httpx.Response, None]


class _Signing(httpx.Auth):
    requires_response_body = True

    def __init__(self, url: str, membership: Membership | None, kept_pass: _KeptPass) -> None:
        self._tracker = httpx.URL(url)
        self._membership = membership
        self._kept_pass = kept_pass

    def auth_flow(self, request: httpx.Request) -> Flow:
        if (request.url.host, request.url.port) == (self._tracker.host, self._tracker.port):
            yield from self._sign(request)
            yield request
            return
        if self._kept_pass.text:
            request.headers[PASS_HEADER] = self._kept_pass.text
        response = yield request
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            yield from self._get_pass()
            request.headers[PASS_HEADER] = self._kept_pass.text
            yield request

    def _sign(self, request: httpx.Request) -> Flow:
        if self._membership is None:
            return
        greeting = yield httpx.Request("GET", self._tracker.join("/v1/nodes/greeting"))
        greeting.raise_for_status()
        self._membership.trust.greet(msgspec.json.decode(greeting.content, type=TrackerGreeting))
        asked = request.url.raw_path.decode()
        request.headers.update(self._membership.headers(asked, b""))
        request.headers[WALLET_HEADER] = self._membership.wallet.wallet_id

    def _get_pass(self) -> Flow:
        request = httpx.Request("GET", self._tracker.join("/v1/nodes/pass"))
        yield from self._sign(request)
        response = yield request
        if response.status_code != HTTPStatus.OK:
            raise SourceError(
                f"nodes hand their model's file to members only, and the tracker at {self._tracker} gives no pass: "
                f"{response.text[:300]}"
            )
        self._kept_pass.text = msgspec.json.decode(response.content, type=PassReply).text
