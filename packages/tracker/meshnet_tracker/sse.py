"""Server-sent events, both ways: reading a head's stream, writing a client's.

Only ``data:`` lines and ``:`` comments are ever written: other fields break clients in the field. The
parser takes bytes however the network cut them; line ends may be LF or CRLF. Its source is the
"event stream" section of the WHATWG HTML standard, minus what no chat server sends (lone CR, BOM).
"""

from meshnet_protocol.errors import RemoteProtocolError

EVENT_BYTES_MAX = 4 * 1024 * 1024
DONE = b"[DONE]"
COMMENT = b": meshnet\n\n"


def write_event(payload: bytes) -> bytes:
    """One event; the payload must be a single line, as JSON without indentation is."""
    return b"data: " + payload + b"\n\n"


class EventParser:
    """Turns a byte stream into the data of its events, in order."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, received: bytes) -> list[bytes]:
        """Data of the events that ``received`` completes.

        Raises RemoteProtocolError if a single event grows beyond ``EVENT_BYTES_MAX``.
        """
        *lines, self._rest = (self._rest + received).split(b"\n")
        events: list[bytes] = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line:
                self._dispatch(events)
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._data_bytes += len(line)
        if self._data_bytes + len(self._rest) > EVENT_BYTES_MAX:
            raise RemoteProtocolError(f"a stream event exceeds {EVENT_BYTES_MAX} bytes")
        return events

    def _dispatch(self, events: list[bytes]) -> None:
        data = b"\n".join(self._data)
        self._data.clear()
        self._data_bytes = 0
        if data:
            events.append(data)
