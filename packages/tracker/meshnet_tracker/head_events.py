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

    @property
    def brings_words(self) -> bool:
        """A token came over every hop of the route."""
        has_tokens = self.meshnet is not None and bool(self.meshnet.token_ids)
        return has_tokens or any(not choice.delta.is_empty for choice in self.choices)


_decoder = msgspec.json.Decoder(HeadEvent)


def decode_event(data: bytes) -> HeadEvent:
    """Raises msgspec.MsgspecError if the data is none."""
    return _decoder.decode(data)
