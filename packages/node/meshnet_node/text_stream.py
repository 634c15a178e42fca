"""From token bytes to text that may be shown: whole characters only, and never a stop string.

Two things are held back: bytes of an unfinished UTF-8 character, and text that might still become a
stop string. Both come out as soon as it is clear that they are neither.
"""

import codecs
from collections.abc import Sequence


class TextStream:
    """Push the bytes of each token, take the text that is safe to show.

    ``has_stopped`` turns true at the stop string that begins earliest in the text; nothing from its
    first character on is ever returned.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.has_stopped = False

    @property
    def held_chars(self) -> int:
        """Characters that are whole but held back."""
        return len(self._held)

    def push(self, piece: bytes) -> str:
        """Text that became safe with this piece; empty while it is held back."""
        return self._release(self._decoder.decode(piece))

    def finish(self) -> str:
        """What was held back and will not become a stop string any more."""
        text = self._release(self._decoder.decode(b"", final=True))
        if self.has_stopped:
            return text
        held, self._held = self._held, ""
        return text + held

    def _release(self, text: str) -> str:
        if self.has_stopped:
            return ""
        self._held += text
        begins = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if begins:
            self.has_stopped = True
            safe, self._held = self._held[: min(begins)], ""
            return safe
        keep = max((overlap(self._held, stop) for stop in self._stops), default=0)
        safe_chars = len(self._held) - keep
        safe, self._held = self._held[:safe_chars], self._held[safe_chars:]
        return safe


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``stop``."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
