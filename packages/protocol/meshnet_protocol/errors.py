"""What can be wrong with words from the other side.

ProtocolError
├── LocalProtocolError    our own mistake: we were about to say something invalid
└── RemoteProtocolError   the peer said something we cannot accept
"""


class ProtocolError(Exception):
    """Something said over the wire is invalid."""


class LocalProtocolError(ProtocolError):
    """We were about to send something the protocol does not allow: a bug on this side."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something the protocol does not allow."""
