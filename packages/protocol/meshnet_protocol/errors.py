"""What can be wrong with words from the other side.

ProtocolError
├── LocalProtocolError    our own mistake: we were about to say something invalid
└── RemoteProtocolError   the peer said something we cannot accept
    └── ExpiredError      ... and could have, earlier
"""


class ProtocolError(Exception):
    """Something said over the wire is invalid."""


class LocalProtocolError(ProtocolError):
    """We were about to send something the protocol does not allow: a bug on this side."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something the protocol does not allow."""


class ExpiredError(RemoteProtocolError):
    """It was right, once. By whose clock is another question."""
