"""How long a GGUF file's header is: found from its first bytes, before the rest has been fetched.

Only lengths are looked at; the ``gguf`` package reads the contents afterwards.
"""

import struct

from meshnet_node.errors import ModelFileError

HEADER_BYTES_MAX = 512 * 1024 * 1024
_STRING, _ARRAY = 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_COUNT_MAX = 1 << 20


class NeedsMoreError(Exception):
    """The header goes on beyond the bytes at hand."""


def header_length(data: bytes) -> int:
    """Where the tensors' bytes begin, padding not counted.

    Raises NeedsMoreError if the header does not end within ``data``, ModelFileError if it is none.
    """
    if data[:4] != b"GGUF"[: len(data[:4])]:
        raise ModelFileError("this is not a GGUF file; give a model in llama.cpp's format")
    walk = _Walk(data)
    walk.skip(4)
    version, tensor_count, value_count = walk.number("I"), walk.number("Q"), walk.number("Q")
    if version not in (2, 3) or tensor_count > _COUNT_MAX or value_count > _COUNT_MAX:
        raise ModelFileError("the GGUF header is damaged, or of a version that is not known; fetch the file again")
    for _ in range(value_count):
        walk.string()
        walk.value(walk.number("I"))
    for _ in range(tensor_count):
        walk.string()
        walk.skip(8 * walk.number("I") + 4 + 8)
    return walk.position


class _Walk:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def skip(self, count: int) -> None:
        if count > HEADER_BYTES_MAX:
            raise ModelFileError("the GGUF header is damaged; fetch the file again")
        if self.position + count > len(self._data):
            raise NeedsMoreError
        self.position += count

    def number(self, code: str) -> int:
        start = self.position
        self.skip(struct.calcsize("<" + code))
        return int(struct.unpack_from("<" + code, self._data, start)[0])

    def string(self) -> None:
        self.skip(self.number("Q"))

    def value(self, kind: int) -> None:
        if kind == _STRING:
            self.string()
        elif kind == _ARRAY:
            self._array()
        elif kind in _SCALAR_BYTES:
            self.skip(_SCALAR_BYTES[kind])
        else:
            raise ModelFileError("the GGUF header is damaged; fetch the file again")

    def _array(self) -> None:
        kind, count = self.number("I"), self.number("Q")
        if kind in _SCALAR_BYTES:
            self.skip(_SCALAR_BYTES[kind] * count)
            return
        if count > HEADER_BYTES_MAX:
            raise ModelFileError("the GGUF header is damaged; fetch the file again")
        for _ in range(count):
            self.value(kind)
