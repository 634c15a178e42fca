"""What can go wrong in a node, split by who can do something about it.

    NodeError
    ├── SettingsError              a flag or environment variable is wrong
    ├── WalletError                the wallet's key file cannot be read or made
    ├── RegistrationRefusedError   the tracker does not want this node
    ├── TrackerKeyError            the tracker is not the one, or not the version, that this node can trust
    ├── ModelFileError             the model's file is missing, damaged or not a model
    │   └── UnsupportedArchitectureError   nobody has shown that this kind of model can be split exactly
    │   └── SourceError            the model's source cannot be reached, or gave something else than promised
    ├── LayersError                a layer range the model or the shard does not have
    ├── NotExactError              the owner insists on exact results and this build has none for these weights
    ├── LayerKindsError            a cut that leaves a segment of a hybrid model without one kind of layer
    ├── MemoryShortageError        the shard would not fit into this machine's memory
    ├── RequestError               the chat cannot be served as asked, here or elsewhere
    │   ├── GrammarError           a grammar or JSON schema that cannot be used
    │   ├── TemplateError          the model's chat template is missing or refuses the messages
    │   ├── ContextOverflowError   prompt and completion do not fit the context
    │   ├── BodyTooLargeError      a body that no chat needs
    │   └── BodyTooSlowError       it came a little at a time, or stopped in its middle
    ├── TicketError                a session that no valid ticket allows
    │   └── ExpiredTicketError     it was valid; this node or its tracker may have stood still
    ├── NoPassError                somebody asks for the model's file without a valid pass
    ├── PlanError                  a route plan that this node cannot be a hop of
    │   ├── EntryLayerError        a session wants to enter or leave the shard where it is not cut
    │   └── StepError              a step that does not fit its session
    ├── NoFreeSlotError            every slot is taken: try again or elsewhere
    ├── OverloadedError            too much is being read already
    ├── UpstreamError              the server behind an --upstream node failed
    │   └── UpstreamRefusalError   it finds the request itself wrong
    ├── EngineClosedError          the engine, or the session, was closed
    ├── SessionForsakenError       the hop before sends nothing any more
    ├── DecodeError                llama.cpp could not compute a step; the session is lost, the node is not
    ├── LinkError                  the link to a neighbouring hop broke
    └── RemoteHopError             a hop further down the chain gave up

``code`` is what travels to other hops and to the tracker, and what programs decide by; the message is
for people and says what to do.
"""

from collections.abc import Iterable
from typing import ClassVar, Self

from meshnet_protocol.ids import NodeId
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import TICKET_EXPIRED_CODE


class NodeError(Exception):
    """Base of everything a node raises on purpose."""

    code: str = "node_error"
    http_status: ClassVar[int] = 500


class SettingsError(NodeError):
    code = "settings"


class WalletError(NodeError):
    code = "wallet"


class RegistrationRefusedError(NodeError):
    code = "registration_refused"

    def __init__(self, message: str, tracker_code: str | None = None) -> None:
        super().__init__(message)
        self.tracker_code = tracker_code
        """What the tracker calls it."""


class TrackerKeyError(NodeError):
    code = "tracker_key"


class NoPassError(NodeError):
    code = "no_pass"
    http_status = 401


class TicketError(NodeError):
    code = "ticket"
    http_status = 403


class ExpiredTicketError(TicketError):
    code = TICKET_EXPIRED_CODE


class ModelFileError(NodeError):
    code = "model_file"


class UnsupportedArchitectureError(ModelFileError):
    """Splitting is exact only where a test has shown it, so everything else is refused at start."""

    code = "unsupported_architecture"

    def __init__(self, architecture: str, verified: Iterable[str], *, reason: str = "") -> None:
        because = reason or "splitting it has not been verified"
        super().__init__(
            f"architecture {architecture!r}: {because}; choose a model of one of: {', '.join(sorted(verified))}"
        )
        self.architecture = architecture


class SourceError(ModelFileError):
    code = "model_source"


class LayersError(NodeError):
    code = "layers"

    def __init__(self, layers: LayerRange, *, layer_count: int) -> None:
        super().__init__(f"layers {layers}: the model has layers 0-{layer_count - 1}; choose a range inside them")


class NotExactError(NodeError):
    code = "not_exact"

    def __init__(self, description: str) -> None:
        super().__init__(
            "--exact on: this model's weight types are not computed exactly by this build of llama.cpp "
            f"({description}); docs/EXACTNESS.md says which build and which weights are, or use --exact auto"
        )


class LayerKindsError(NodeError):
    """llama.cpp aborts the process if a hybrid model has layers of one kind only, so no such segment is made."""

    code = "layer_kinds"

    def __init__(self, layers: LayerRange, *, nearest: LayerRange | None) -> None:
        advice = f"choose for instance {nearest}" if nearest else "this model has one kind only and cannot be run"
        super().__init__(
            f"layers {layers}: a part of this model needs at least one layer with full attention and one with "
            f"linear attention, and these are all of one kind; {advice}"
        )
        self.nearest = nearest


class MemoryShortageError(NodeError):
    code = "memory"


class RequestError(NodeError):
    code = "invalid_request"
    http_status = 400

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        """The request's field at fault, where one is."""

    def about(self, param: str | None) -> Self:
        self.param = param
        return self


class GrammarError(RequestError):
    code = "invalid_grammar"


class NothingFollowsError(GrammarError):
    """A part of a JSON schema that no value follows; among alternatives it is the others that count."""


class TemplateError(RequestError):
    code = "chat_template"


class ContextOverflowError(RequestError):
    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        super().__init__(
            f"This model's maximum context length is {context_tokens} tokens, and {prompt_tokens} were asked for; "
            "shorten the messages, or start the nodes with more --context-tokens",
            "messages",
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class BodyTooLargeError(RequestError):
    code = "body_too_large"
    http_status = 413


class BodyTooSlowError(RequestError):
    code = "body_too_slow"
    http_status = 408


class PlanError(NodeError):
    code = "plan"
    http_status = 409


class EntryLayerError(PlanError):
    code = "entry_layer"

    def __init__(self, layers: LayerRange, *, shard: LayerRange, entry_layers: Iterable[int]) -> None:
        starts = ", ".join(str(layer) for layer in entry_layers)
        super().__init__(f"layers {layers}: shard {shard} can be entered at {starts} and must be left at {shard.last}")


class StepError(PlanError):
    code = "step"


class NoFreeSlotError(NodeError):
    code = "no_free_slot"
    http_status = 503

    def __init__(self, slots: int, *, waiting: int = 0, waited_s: float = 0.0) -> None:
        queue = f" and {waiting} wait for one" if waiting else ""
        queue += f", and none came free in {waited_s:.1f} s" if waited_s else ""
        super().__init__(f"all {slots} slots are taken{queue}; try again soon, or start the node with more --slots")


class OverloadedError(NodeError):
    code = "overloaded"
    http_status = 503


class UpstreamError(NodeError):
    """``is_overload``: it has no room now; the tracker then tries another route."""

    http_status = 502

    def __init__(self, message: str, *, is_overload: bool = False) -> None:
        super().__init__(message)
        self.code = NoFreeSlotError.code if is_overload else "upstream"


class UpstreamRefusalError(UpstreamError):
    """The request's own fault, in the upstream's words."""

    http_status = 400

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.code
        self.param = param


class EngineClosedError(NodeError):
    code = "engine_closed"
    http_status = 503


class SessionForsakenError(NodeError):
    code = "session_forsaken"

    def __init__(self, idle_s: float) -> None:
        super().__init__(f"no step came for {idle_s:g} s; the hop before this one is frozen or cut off")


class DecodeError(NodeError):
    code = "decode"


class LinkError(NodeError):
    code = "link"
    http_status = 502

    def __init__(self, node_id: NodeId, message: str) -> None:
        super().__init__(f"link to {node_id}: {message}")
        self.node_id = node_id
        self.reason = message


class RemoteHopError(NodeError):
    http_status = 502

    def __init__(self, culprit: NodeId | None, code: str, message: str, *, reporter: NodeId | None = None) -> None:
        super().__init__(message)
        self.culprit = culprit
        self.code = code
        self.reporter = reporter
        """Who found the link to the culprit broken, if that is what it is."""
