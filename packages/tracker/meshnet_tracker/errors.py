"""What can go wrong in the tracker, split by who is at fault. How each reads over HTTP: ``openai_errors.py``.

TrackerError
├── SettingsError                     whoever started the tracker gave a value it cannot work with
├── RegistrationRefusedError          a node says something that cannot be
│   ├── RegistrationConflictError     ... or something that contradicts what is known already
│   └── UnreachableNodeError          ... or an address at which it cannot be reached
├── NodeProofError                    what a node says is not proven to be its own
│   ├── StaleProofError               it was, once: signed for another run, too long ago, or said before
│   ├── BadSignatureError             it is not signed by the wallet it is said for
│   └── NotAdmittedError              a wallet that may not join
├── TooManyGuessesError               such, one after the other from one address
├── ClientError                       the sender of the chat is at fault
│   ├── MalformedRequestError         not what the endpoint accepts
│   ├── BodyTooLargeError
│   ├── BodyTooSlowError              it came a little at a time, or stopped in its middle
│   ├── UnknownModelError
│   ├── InvalidRouteError             a pinned route that can never work
│   └── RefusedByHeadError            the head's own 4xx, handed on as it is
├── MeshError                         a good request that the mesh cannot serve now
│   ├── NoRouteError                  no chain of ready nodes holds all layers
│   ├── RouteUnavailableError         a pinned route whose nodes are not ready
│   ├── NodeLostError                 every route that was tried broke
│   ├── OverloadedError               every route that was tried was full
│   │   ├── RateLimitedError          ... and this client has more waiting than anybody
│   │   └── RouteOnTrialError         what is left has failed lately, and somebody else is trying it
│   └── ShuttingDownError             the tracker was told to stop, and the chat would not end in time
├── AttemptFailedError                one route failed one chat; another may still serve it
└── ClientGoneError                   nobody is listening any more
"""

from collections.abc import Mapping
from typing import Any

from meshnet_protocol.ids import NodeId
from meshnet_tracker.outcomes import Outcome


class TrackerError(Exception):
    """Base of everything the tracker raises on purpose."""


class SettingsError(TrackerError, ValueError):
    """A setting has a value the tracker cannot work with; the message names setting and value."""


class RegistrationRefusedError(TrackerError):
    """What a node says about itself cannot be; the message tells its owner what to change."""


class RegistrationConflictError(RegistrationRefusedError):
    """What a node says contradicts what others, or its own newer process, have said before."""


class UnreachableNodeError(RegistrationRefusedError):
    """The tracker cannot reach the node where it says it is; the message says what to open or to set."""


class NodeProofError(TrackerError):
    """A node's request without a proof that it is the node's own. ``is_guess``: it has one, and that is wrong."""

    def __init__(self, message: str, *, is_guess: bool = False) -> None:
        super().__init__(message)
        self.is_guess = is_guess


class StaleProofError(NodeProofError):
    """A proof that was good once, or elsewhere: the node greets the tracker and registers again."""


class BadSignatureError(NodeProofError):
    """No proof at all, or one by another wallet."""


class NotAdmittedError(NodeProofError):
    """A wallet that may not join; the message says what its owner or the tracker's can do."""


class TooManyGuessesError(TrackerError):
    """One wrong proof after the other from one address; ``wait_s``: when it may try again."""

    def __init__(self, wait_s: int) -> None:
        super().__init__(f"wrong signatures or join tokens, too often from this address: wait {wait_s} s")
        self.wait_s = wait_s


class ClientError(TrackerError):
    """The request is wrong. ``param`` names the field at fault, if one is."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class MalformedRequestError(ClientError):
    """The body is not what the endpoint accepts. ``code`` is OpenAI's name for it, where it has one."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param)
        self.code = code


class BodyTooLargeError(ClientError):
    """The body exceeds the endpoint's limit."""


class BodyTooSlowError(ClientError):
    """The body does not come, or hardly."""


class UnknownModelError(ClientError):
    """No node has ever served a model of this name."""


class InvalidRouteError(ClientError):
    """The pinned route could not work even with every node up."""


class RefusedByHeadError(ClientError):
    """The head found the request wrong (a prompt beyond the context, say): its status and error object."""

    def __init__(self, *, status: int, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message", "the head refused the request")))
        self.status = status
        self.error = error


class MeshError(TrackerError):
    """The request is fine; the mesh cannot serve it now."""


class NoRouteError(MeshError):
    """No chain of ready nodes holds every layer; the message names the layers that are missing."""


class RouteUnavailableError(MeshError):
    """A node of the pinned route is gone, draining, or not enterable where it would have to be."""


class NodeLostError(MeshError):
    """The chat was lost with its node, and no other route is left to run it.

    ``outcome`` and ``culprit`` are those of the last attempt.
    """

    def __init__(self, message: str, *, outcome: Outcome = Outcome.NODE_FAULT, culprit: NodeId | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.culprit = culprit


class OverloadedError(MeshError):
    """Every route that was tried had no room."""


class RateLimitedError(OverloadedError):
    """There is no room, and the client waits with more requests than others already."""


class RouteOnTrialError(OverloadedError):
    """Every route that is left has failed lately, and one request at a time goes there."""


class ShuttingDownError(MeshError):
    """The tracker is about to end, and the chat is not."""


class AttemptFailedError(TrackerError):
    """One route failed one chat.

    ``culprit`` is the node at fault, as far as is known; without one it is the head. ``reporter`` is set if what
    broke is the link from there to the culprit: then neither of the two is guilty yet. ``wants_probe``: the
    tracker itself could not reach the culprit, heard nothing from it, or doubts what it stands for: it calls there.
    """

    def __init__(
        self,
        message: str,
        *,
        outcome: Outcome = Outcome.NODE_FAULT,
        culprit: NodeId | None = None,
        reporter: NodeId | None = None,
        wants_probe: bool = False,
        is_blameless: bool = False,
    ) -> None:
        super().__init__(message)
        self.is_blameless = is_blameless or outcome is Outcome.OVERLOAD
        """It says nothing bad about anybody: a route that is full, or one that cannot take over this chat."""
        self.outcome = outcome
        self.culprit = culprit
        self.reporter = reporter
        self.wants_probe = wants_probe

    @property
    def is_overload(self) -> bool:
        return self.outcome is Outcome.OVERLOAD


class ClientGoneError(TrackerError):
    """The client closed its connection, or stopped reading for too long."""
