"""A model file behind an http(s) URL, read in ranges.

Transport errors, 429 and 5xx are tried again with back-off; anything else is said at once. The file must stay
the one it was: its size and its validator (ETag, else Last-Modified) are compared on every answer.
"""

import random
import re
import ssl
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import httpx

from meshnet_node.errors import SourceError

T = TypeVar("T")

ATTEMPTS_MAX = 6
BACKOFF_S_MIN = 0.5
BACKOFF_S_MAX = 20.0
TIMEOUT_S = 30.0
WHOLE_BLOCK_BYTES = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_WORTH_RETRYING = frozenset({408, 425, 429, 500, 502, 503, 504})
_ADVICE = {
    401: "it wants credentials; for a Hugging Face repository set HF_TOKEN",
    403: "access is refused; for a gated Hugging Face repository accept its terms and set HF_TOKEN",
    404: "there is no such file; check the address",
}


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """What a server says of a file."""

    byte_count: int
    validator: str
    """ETag, else Last-Modified, else empty."""
    takes_ranges: bool


class HttpSource:
    """Bytes of one file behind a URL. Blocking; to be used by one thread at a time."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        wait: Callable[[float], None] | None = None,
        tls: ssl.SSLContext | None = None,
        auth: httpx.Auth | None = None,
    ) -> None:
        self.url = url
        self._wait = wait or time.sleep
        self._file: RemoteFile | None = None
        # Compressed ranges would be ranges of something else.
        self._http = httpx.Client(
            verify=tls or True,
            auth=auth,
            headers={**headers, "Accept-Encoding": "identity"},
            follow_redirects=True,
            timeout=TIMEOUT_S,
        )
        weakref.finalize(self, self._http.close)

    def describe(self) -> RemoteFile:
        """Size and identity of the file. Raises SourceError."""
        if self._file is None:
            self._file = self._with_patience(self._probe)
        return self._file

    def read(self, start: int, end: int) -> bytes:
        """Raises SourceError. Servers may answer a range with its beginning only; the rest is asked for then."""
        data = bytearray()
        while start + len(data) < end:
            data += self.read_some(start + len(data), end)
        return bytes(data)

    def read_some(self, start: int, end: int) -> bytes:
        """At least one byte from ``start`` on: as many as the server gives at once. Raises SourceError."""
        return self._with_patience(lambda: self._read_once(start, end))

    def read_whole(self, write: Callable[[bytes], object]) -> None:
        """For servers without ranges: all of the file, in one answer. Raises SourceError."""
        byte_count, received = self.describe().byte_count, 0
        try:
            with self._http.stream("GET", self.url) as response:
                self._check_status(response)
                for block in response.iter_bytes(WHOLE_BLOCK_BYTES):
                    write(block)
                    received += len(block)
        except (httpx.HTTPError, _TransientError) as error:
            raise SourceError(f"{self.url} cannot be fetched ({error!r}); start again") from error
        if received != byte_count:
            raise SourceError(f"{self.url} ended after {received} of {byte_count} bytes; start again")

    def _probe(self) -> RemoteFile:
        with self._http.stream("GET", self.url, headers={"Range": "bytes=0-0"}) as response:
            self._check_status(response)
            validator = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
            match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if response.status_code == 206 and match:
                return RemoteFile(int(match[3]), validator, takes_ranges=True)
            size = response.headers.get("Content-Length", "")
            if not size.isdecimal():
                raise SourceError(f"{self.url}: the server does not say how large the file is; download it yourself")
            return RemoteFile(int(size), validator, takes_ranges=False)

    def _read_once(self, start: int, end: int) -> bytes:
        file = self.describe()
        if not file.takes_ranges:
            raise SourceError(f"{self.url}: the server does not serve parts of files; fetch the whole")
        response = self._http.get(self.url, headers={"Range": f"bytes={start}-{end - 1}"})
        self._check_status(response)
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        validator = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        if match is None or int(match[3]) != file.byte_count or validator != file.validator:
            raise SourceError(f"{self.url} has changed while it was being fetched; start again")
        data = response.content
        if int(match[1]) != start or not 1 <= len(data) == int(match[2]) - start + 1 <= end - start:
            raise SourceError(f"{self.url}: the server answered another range than it was asked for")
        return data

    def _check_status(self, response: httpx.Response) -> None:
        status = response.status_code
        if status in _WORTH_RETRYING:
            raise _TransientError(f"answered {status}")
        if status not in (200, 206):
            advice = _ADVICE.get(status, response.reason_phrase)
            raise SourceError(f"{self.url} answered {status}: {advice}")

    def _with_patience(self, attempt: Callable[[], T]) -> T:
        return with_patience(attempt, self.url, self._wait)


class _TransientError(Exception):
    pass


def with_patience(attempt: Callable[[], T], url: str, wait: Callable[[float], None]) -> T:
    """Call until it works, at most ``ATTEMPTS_MAX`` times. Raises SourceError."""
    backoff_s = BACKOFF_S_MIN
    for number in range(1, ATTEMPTS_MAX + 1):
        try:
            return attempt()
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise SourceError(f"{url} is no address to fetch from ({error})") from error
        except (httpx.HTTPError, _TransientError) as error:
            if number == ATTEMPTS_MAX:
                reason = str(error) or type(error).__name__
                raise SourceError(
                    f"{url} cannot be fetched ({reason}), tried {number} times; what has arrived is kept, start again"
                ) from error
            wait(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
    raise AssertionError("unreachable")
