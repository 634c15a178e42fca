"""How a chat, or one attempt at it, ended, and by whose doing.

completed                    the only one that the learning hears of
degenerate, node_fault,      the mesh's doing: of which node or link, as far as is known
timeout, overload
client_gone, client_error    the client's own: says nothing about anybody
shutdown                     the tracker was told to stop
"""

from enum import StrEnum


class Outcome(StrEnum):
    COMPLETED = "completed"
    DEGENERATE = "degenerate"
    """No token where some were due, or a stream cut short: "done" was said, and it was not."""
    NODE_FAULT = "node_fault"
    TIMEOUT = "timeout"
    """No sign of life for too long, or no end in all the time a chat may take."""
    OVERLOAD = "overload"
    CLIENT_GONE = "client_gone"
    CLIENT_ERROR = "client_error"
    SHUTDOWN = "shutdown"
