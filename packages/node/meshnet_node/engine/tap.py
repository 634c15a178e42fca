"""Taking hidden states out of llama.cpp, in the middle of its graph.

llama.cpp asks its evaluation callback about every node of the graph before computing it (``ask``). Answering
yes for one node makes it compute up to there and call again with the result, and answering no then ends the
graph: neither the final norm nor the output matrix is computed.

The callback runs for some 27 to 45 nodes a layer, so it does nothing but compare a name. It is written in C
(``_tap.c``); where that could not be compiled a Python twin does the same, at 2 to 4 % of a token's time, because
each call needs the GIL. It may fire several times in one decode: once for every ubatch, in the order of the rows.
"""

import ctypes
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from meshnet_node.engine.llama import ggml

_ITEM_BYTES = 4
_NAME_BYTES_MAX = 64  # GGML_MAX_NAME


def native_callback() -> int | None:
    """Address of the callback in C; None if it was not compiled."""
    try:
        return int(import_module("meshnet_node.engine._tap").ON_NODE)
    except ImportError:
        return None


class HiddenTap:
    """The output of a segment's last layer, copied out as float32 rows.

    ``callback`` and ``user_data`` go into the context's parameters; the tap must outlive the context.
    """

    def __init__(self, last_layer: int, *, hidden_size: int, native: int | None = None) -> None:
        """``native``: the address that ``native_callback`` found."""
        self._row_bytes = hidden_size * _ITEM_BYTES
        self._rows = np.empty((0, hidden_size), np.float32)
        name = b"l_out-%d" % last_layer
        self._state = _TapState(ggml().name_of, ggml().bytes_of, ggml().copy, wanted=name)
        function = llama_cpp.ggml_backend_sched_eval_callback
        self.callback: Any = function(native) if native else function(_make_callback(name + b"\0", self._copy))
        self.user_data = ctypes.addressof(self._state)

    def arm(self, row_count: int) -> None:
        """Make room for the rows of the next decode."""
        self._rows = np.empty((row_count, self._rows.shape[1]), np.float32)
        self._state.rows = self._rows.ctypes.data
        self._state.room_bytes = self._rows.nbytes
        self._state.filled_bytes = 0

    def take(self) -> npt.NDArray[np.float32]:
        """The rows of the last decode, shape (row_count, hidden_size); the caller owns them.

        Raises BufferError if llama.cpp did not hand over just as many rows as were asked for.
        """
        filled_bytes = int(self._state.filled_bytes)
        if filled_bytes != self._rows.nbytes:
            raise BufferError(f"{filled_bytes // self._row_bytes} hidden rows instead of {len(self._rows)}")
        return self._rows

    def _copy(self, tensor: int) -> None:
        size = ggml().tensor_bytes(tensor)
        state = self._state
        if state.filled_bytes + size <= state.room_bytes:
            ggml().tensor_get(tensor, state.rows + state.filled_bytes, 0, size)
        state.filled_bytes += size


class _TapState(ctypes.Structure):
    """Laid out as ``struct tap_state`` in ``_tap.c``."""

    _fields_ = (
        ("name_of", ctypes.c_void_p),
        ("bytes_of", ctypes.c_void_p),
        ("copy", ctypes.c_void_p),
        ("wanted", ctypes.c_char * _NAME_BYTES_MAX),
        ("rows", ctypes.c_void_p),
        ("room_bytes", ctypes.c_size_t),
        ("filled_bytes", ctypes.c_size_t),
    )


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
