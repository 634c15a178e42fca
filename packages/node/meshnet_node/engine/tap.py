"""Taking hidden states out of llama.cpp, in the middle of its graph.

llama.cpp asks its evaluation callback about every node of the graph before computing it (``ask``). Answering
yes for one node makes it compute up to there and call again with the result, and answering no then ends the
graph: neither the final norm nor the output matrix is computed.

The callback runs for some 27 nodes a layer and needs the GIL each time, so it does nothing but compare a
name. It may fire several times in one decode: once for every ubatch, in the order of the rows.
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from meshnet_node.engine.llama import ggml

_ITEM_BYTES = 4


class HiddenTap:
    """The output of a segment's last layer, copied out as float32 rows.

    ``callback`` goes into the context's parameters; the tap must outlive the context.
    """

    def __init__(self, last_layer: int, *, hidden_size: int) -> None:
        self._row_bytes = hidden_size * _ITEM_BYTES
        self._rows = np.empty((0, hidden_size), np.float32)
        self._filled_bytes = 0
        self.callback: Any = llama_cpp.ggml_backend_sched_eval_callback(
            _make_callback(b"l_out-%d\0" % last_layer, self._copy)
        )

    def arm(self, row_count: int) -> None:
        """Make room for the rows of the next decode."""
        self._rows = np.empty((row_count, self._rows.shape[1]), np.float32)
        self._filled_bytes = 0

    def take(self) -> npt.NDArray[np.float32]:
        """The rows of the last decode, shape (row_count, hidden_size); the caller owns them.

        Raises BufferError if llama.cpp did not hand over just as many rows as were asked for.
        """
        if self._filled_bytes != self._rows.nbytes:
            raise BufferError(f"{self._filled_bytes // self._row_bytes} hidden rows instead of {len(self._rows)}")
        return self._rows

    def _copy(self, tensor: int) -> None:
        size = ggml().tensor_bytes(tensor)
        if self._filled_bytes + size <= self._rows.nbytes:
            ggml().tensor_get(tensor, self._rows.ctypes.data + self._filled_bytes, 0, size)
        self._filled_bytes += size


def _make_callback(wanted: bytes, copy: Callable[[int], None]) -> Callable[[int, bool, object], bool]:
    """Compares the name's first eight bytes as one number: half the time of making a string of it."""
    word_at = ctypes.c_uint64.from_address
    wanted_word = int.from_bytes(wanted.ljust(8, b"\0")[:8], sys.byteorder)
    name_offset: int | None = None

    def on_node(tensor: int, ask: bool, _user_data: object) -> bool:
        nonlocal name_offset
        if not ask:
            copy(tensor)
            return False
        if name_offset is None:
            name_offset = ggml().name_offset(tensor)
        if word_at(tensor + name_offset).value != wanted_word:
            return False
        return ctypes.string_at(tensor + name_offset, len(wanted)) == wanted

    return on_node
