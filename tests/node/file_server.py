"""A real HTTP server for model files, with the habits of real ones: ranges or none, outages, other versions.

Hugging Face cannot be had in a test. ``/owner/repository/resolve/...`` answers as the hub does, as far as
``huggingface_hub`` looks: a redirect that names commit, size and hash, to where the bytes are.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN_WANTED = "hf_test"


@dataclass
class FileServer:
    files: dict[str, bytes]
    etag: str = '"v1"'
    takes_ranges: bool = True
    outages: int = 0
    """Answers that are 503 before one succeeds."""
    bytes_left: int | None = None
    """After so many bytes, 503 for ever."""
    wants_token: bool = False
    url: str = ""
    sent_bytes: int = 0
    paths: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: FileServer

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._serve(with_body=False)

    def do_GET(self) -> None:
        self._serve(with_body=True)

    def _serve(self, *, with_body: bool) -> None:
        state = self.state
        state.paths.append(self.path)
        if match := re.fullmatch(r"/[\w-]+/[\w.-]+/resolve/(?:main|[0-9a-f]{40})/(.+)", self.path):
            self._serve_hub(match[1])
            return
        data = state.files.get(self.path.removeprefix("/cdn"))
        if data is None:
            self._answer(404, b"")
        elif state.outages > 0 or (state.bytes_left is not None and state.sent_bytes >= state.bytes_left):
            state.outages -= 1
            self._answer(503, b"")
        else:
            self._serve_file(data, with_body=with_body)

    def _serve_hub(self, name: str) -> None:
        state = self.state
        data = state.files.get(f"/{name}")
        if state.wants_token and self.headers.get("Authorization") != f"Bearer {TOKEN_WANTED}":
            self._answer(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model is restricted"})
        elif data is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        else:
            linked = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": '"a-sha256"', "X-Repo-Commit": COMMIT}
            cdn = state.url.replace("127.0.0.1", "localhost")  # another origin, as the hub's own store is
            self._answer(302, b"", {"Location": f"{cdn}/cdn/{name}", **linked})

    def _serve_file(self, data: bytes, *, with_body: bool) -> None:
        state = self.state
        headers = {"ETag": state.etag}
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if state.takes_ranges else None
        if match:
            headers["Content-Range"] = f"bytes {match[1]}-{match[2]}/{len(data)}"
            data = data[int(match[1]) : int(match[2]) + 1]
        self._answer(206 if match else 200, data if with_body else b"", headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.state.sent_bytes += len(body)


@contextmanager
def serving_files(files: dict[str, bytes]) -> Iterator[FileServer]:
    state = FileServer(files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state}))
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
