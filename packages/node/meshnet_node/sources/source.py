"""The one question a source of model files answers: what are the bytes from here to there?

A slice is written from such answers alone, so cutting a file on this disk and fetching a few layers from far
away are the same code: see ``engine/gguf_slice.py``.
"""

from pathlib import Path
from typing import Protocol

from meshnet_node.errors import SourceError


class TensorSource(Protocol):
    """Bytes of one file, wherever it lies."""

    def read(self, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end``, the last left out. Raises SourceError; never returns fewer."""
        ...


class LocalSource:
    """A file on this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, start: int, end: int) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(start)
                data = file.read(end - start)
        except OSError as error:
            raise SourceError(f"cannot read the model: {error}") from error
        if len(data) != end - start:
            raise SourceError(f"{self._path} ends before byte {end}; it has changed or is damaged: fetch it again")
        return data
