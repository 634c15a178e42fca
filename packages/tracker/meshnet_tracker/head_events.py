"""What the tracker reads of a head's stream; the rest of a ``ChatChunk`` it writes itself."""

from typing import Any

import msgspec

from meshnet_protocol.messages import Choice, HeadReport, Usage


class HeadEvent(msgspec.Struct, frozen=True):
    """One ``data:`` event: a piece of the answer, a report on the side, the usage, or an error."""

    choices: list[Choice] = []
    usage: Usage | None = None
    meshnet: HeadReport | None = None
    error: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(HeadEvent)


def decode_event(data: bytes) -> HeadEvent:
    """Raises msgspec.MsgspecError if the data is none."""
    return _decoder.decode(data)
