"""llama.cpp as a library: its start-up, its log, and the few ggml functions the bindings leave out."""

import collections
import ctypes
import logging
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp

log = logging.getLogger("meshnet.llama")

_ERROR_LEVEL = 4  # enum ggml_log_level in ggml.h; the comment in the bindings is out of date
_recent_errors: collections.deque[str] = collections.deque(maxlen=3)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, _user_data: object) -> None:
    """llama.cpp reports hundreds of lines for every load: they go to our log, at debug level."""
    line = text.decode("utf-8", errors="replace").strip()
    if level == _ERROR_LEVEL:
        _recent_errors.append(line)
    log.debug("%s", line)


@cache
def start_llama() -> None:
    """Initialise llama.cpp once for this process. Cheap to call again."""
    llama_cpp.llama_log_set(_on_log, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()


def take_errors() -> str:
    """What llama.cpp complained about since the last call; "no reason given" if it said nothing."""
    lines = "; ".join(_recent_errors)
    _recent_errors.clear()
    return lines or "no reason given"


class Ggml:
    """Reading tensors by their address, and where in ``struct ggml_tensor`` the name lies."""

    def __init__(self) -> None:
        directory = Path(llama_cpp.__file__).parent / "lib"
        library = llama_cpp._ctypes_extensions.load_shared_library("ggml-base", directory)
        self.tensor_get: Any = library.ggml_backend_tensor_get
        self.tensor_get.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
        self.tensor_get.restype = None
        self.tensor_bytes: Any = library.ggml_nbytes
        self.tensor_bytes.argtypes = (ctypes.c_void_p,)
        self.tensor_bytes.restype = ctypes.c_size_t
        self._name_of: Any = library.ggml_get_name
        self._name_of.argtypes = (ctypes.c_void_p,)
        self._name_of.restype = ctypes.c_void_p
        self.name_of, self.bytes_of, self.copy = (
            ctypes.cast(function, ctypes.c_void_p).value
            for function in (self._name_of, self.tensor_bytes, self.tensor_get)
        )
        """The addresses of the three, for callers that are not Python."""

    def name_offset(self, tensor: int) -> int:
        """Distance from a tensor's address to its name. ``ggml_get_name`` returns the member's address."""
        return int(self._name_of(tensor)) - tensor


@cache
def ggml() -> Ggml:
    return Ggml()
